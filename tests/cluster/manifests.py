# SPDX-License-Identifier: MIT OR Apache-2.0
"""Renders the chart as Helm does, and holds manifests against the schemas of Kubernetes.

  manifests.py < QUESTION      as JSON: "values" of the chart, or "files" or "texts"; "versions" of
                               Kubernetes, and "cluster", the one that Helm meets; "pods", "updates"
                               of pods, and "writes" with their requests, which the first policy is
                               to judge; "several" values, each of which the chart takes or not
  manifests.py --plain         prints the chart with its defaults as one file

Answers with JSON. Helm's own code renders; the schemas are those that Kubernetes publishes, strict:
a field that there is not is a fault. The Prometheus operator's kind has a schema of its own here,
after the operator's documentation. Played with the Python of the set `kubernetes`.
"""

import json
import re
import shutil
import sys
import tempfile
from pathlib import Path

import cel
import helm_python
import jsonschema
import kubernetes_validate
import yaml

CHART = Path(__file__).resolve().parents[2] / "deploy" / "kubernetes" / "chart"


POD_MONITOR = Path(__file__).resolve().parent / "podmonitor.schema.json"


def faults(document, versions):
    """A line for each fault of a manifest."""
    if document.get("kind") == "PodMonitor":
        schema = json.loads(POD_MONITOR.read_text())
        for fault in jsonschema.Draft7Validator(schema).iter_errors(document):
            yield f"PodMonitor: {'/'.join(map(str, fault.absolute_path))}: {fault.message}"
        return
    for version in versions:
        if newer_than(document, version):
            continue
        try:
            kubernetes_validate.validate(document, version, strict=True)
        except kubernetes_validate.ValidationError as why:
            place = "/".join(map(str, why.path))
            yield f"{version}: {document.get('kind')}: {place}: {why.message}"
        except Exception as why:  # noqa: BLE001 - no schema for it, which is a fault as well
            yield f"{version}: {document.get('kind')}: {getattr(why, 'message', why)}"


# The first Kubernetes with claims of resource.k8s.io/v1.
CLAIMS_MINOR = 34


def newer_than(document, version):
    """Whether a manifest is for clusters with claims, and this version has none."""
    claims = document["apiVersion"].startswith("resource.k8s.io/")
    claims = claims or "resourceClaims" in document.get("spec", {})
    return claims and int(version.split(".")[1]) < CLAIMS_MINOR


def loaded(cluster=None):
    """The chart. `cluster`: for this version of Kubernetes, which Helm would ask the cluster."""
    if cluster is None:
        return helm_python.Chart.load(str(CHART))
    with tempfile.TemporaryDirectory() as folder:
        copied = Path(shutil.copytree(CHART, Path(folder) / "weft"))
        for file in copied.glob("templates/**/*.yaml"):
            asked, version = ".Capabilities.KubeVersion.Version", f'"v{cluster}.2-eks-1"'
            file.write_text(file.read_text().replace(asked, version))
        return helm_python.Chart.load(str(copied))


def texts(values, chart):
    """The manifests of the chart with these values, as Helm writes them."""
    chart.validate_schema(values)
    made = chart.render(values, name="weft", namespace="weft-system")
    return [text for name, text in sorted(made.items()) if name.endswith(".yaml")]


def documents_of(texts):
    return [one for text in texts for one in yaml.safe_load_all(text) if one]


# The broker follows processes of other containers: no stricter level allows that.
NAMESPACE = """apiVersion: v1
kind: Namespace
metadata:
  name: weft-system
  labels:
    pod-security.kubernetes.io/enforce: privileged
"""

HEAD = """# The chart with its defaults, for use without Helm: kubectl apply -f, or a base of kustomize.
# Made by scripts/cluster kubernetes --write; a test compares it with the chart.
"""


def plain():
    """One file for clusters without Helm."""
    parts = [NAMESPACE, *(text.strip() + "\n" for text in texts({}, loaded()) if text.strip())]
    return HEAD + "---\n".join(parts)


# Functions that Kubernetes adds to the language.
ADDED = {
    "lowerAscii": lambda text: text.lower(),
    "split": lambda text, at: text.split(at),
    "find": lambda text, pattern: (re.search(pattern, text) or [""])[0],
}


def evaluated(expression, names):
    context = cel.Context(variables=names)
    for name, function in ADDED.items():
        context.add_function(name, function)
    return cel.evaluate(expression, context)


def refusal(values, chart):
    """The line by which Helm refuses values, or None."""
    try:
        texts(values, chart)
    except helm_python.HelmError as why:
        return str(why)
    return None


def verdict(policy, pod, before=None, request=None):
    """The message by which a policy refuses an object, or its update, or None: as an API server
    goes through it."""
    found = {}
    names = {"object": pod, "oldObject": before, "request": request, "variables": found}
    for condition in policy["spec"].get("matchConditions", []):
        if evaluated(condition["expression"], names) is not True:
            return None
    for variable in policy["spec"]["variables"]:
        found[variable["name"]] = evaluated(variable["expression"], names)
    for rule in policy["spec"]["validations"]:
        if evaluated(rule["expression"], names) is not True:
            return rule["message"]
    return None


def answer(question):
    documents = []
    try:
        if "values" in question:
            documents += documents_of(texts(question["values"], loaded(question.get("cluster"))))
    except helm_python.HelmError as why:
        return {"refused": str(why)}
    documents += documents_of(Path(file).read_text() for file in question.get("files", []))
    documents += documents_of(question.get("texts", []))
    found = [line for one in documents for line in faults(one, question["versions"])]
    policies = [one for one in documents if one["kind"] == "ValidatingAdmissionPolicy"]
    verdicts = [verdict(policies[0], pod) for pod in question.get("pods", [])]
    verdicts += [verdict(policies[0], after, before) for before, after in question.get("updates", [])]
    verdicts += [verdict(policies[0], one["object"], None, one["request"]) for one in question.get("writes", [])]
    linted = helm_python.lint(str(CHART)) if question.get("lint") else None
    told = {"documents": documents, "faults": found, "lint": linted, "verdicts": verdicts}
    chart = loaded()
    refusals = [refusal(values, chart) for values in question.get("several", [])]
    return {**told, "refused": None, "refusals": refusals}


if sys.argv[1:] == ["--plain"]:
    print(plain(), end="")
else:
    print(json.dumps(answer(json.load(sys.stdin))))
