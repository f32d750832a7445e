# SPDX-License-Identifier: MIT OR Apache-2.0
"""The broker's metrics as their readers see them: promtool, Prometheus, a dashboard.

Prometheus is Debian's own. Jobs are native clients of the simulated GPU. Without Debian's packages
a case that needs them fails with one line.
"""

import contextlib
import http.client
import json
import operator
import os
import re
import socket
import sqlite3
import stat
from pathlib import Path

import pytest
from fixtures import debian
from fixtures.scene import BOUND, Scene, weft
from harness import jobs, paths
from prometheus import Prometheus, get, promtool

DEPLOY = paths.ROOT / "deploy"
RULES = DEPLOY / "prometheus" / "rules.yml"
DASHBOARD = DEPLOY / "grafana" / "weft.json"
OPENMETRICS = "application/openmetrics-text; version=1.0.0; charset=utf-8"
PLAIN = "text/plain; version=0.0.4; charset=utf-8"


class MetricsScene(Scene):
    """A scene whose broker answers over TCP, too, at a port of the kernel's choice."""

    def __init__(self, folder, options, policy=None):
        super().__init__(folder, options, policy)
        self.broker.arguments += ["--metrics", "127.0.0.1:0"]
        # Control groups of jobs, by the jobs' names.
        self.groups = {}

    def job(self, command, name=None, **options):
        if group := self.groups.get(name):
            command = ["sh", "-c", 'echo $$ > "$0/cgroup.procs" && exec "$@"', group, *map(str, command)]
        return super().job(command, name, **options)

    @property
    def address(self):
        """The address of the metrics in the broker's output."""
        found = []

        def said():
            found[:] = re.findall(r"metrics at http://(\S+)/metrics", self.broker.job.stderr())
            return found

        assert jobs.wait_until(said, BOUND), self.broker.job.explain()
        return found[-1]

    @property
    def socket(self):
        return self.folder / "broker.sock.metrics"

    def pair(self):
        """A foreground job and a background job at work."""
        service = self.companion("service", priority=0, pause=2000)
        training = self.companion("training", priority=5, pause=100)
        self.attached(service, training)
        return service, training


pytestmark = pytest.mark.scene(make=MetricsScene)

# As the kubelet and a runtime name a container.
CONTAINER = "0123456789abcdef" * 4
PART = f"kubepods/burstable/pod8b1f1c0e-5c7b-4c1f-9a37-0e5d4f3a2b1c/{CONTAINER}"
POD = {"namespace": "team-a", "pod": "serve-0", "container": "main"}
# Labels that the operator's Prometheus gives to each series of a broker in a pod.
TARGET = {"namespace": "weft-system", "pod": "weft-x7k2p", "container": "broker"}


@contextlib.contextmanager
def container():
    """The control group of a container as the kubelet makes it, or None if none can be made."""
    for root in map(Path, ("/sys/fs/cgroup/pids", "/sys/fs/cgroup")):
        top = root / f"weft-test-{os.getpid()}"
        try:
            (root / "cgroup.procs").stat()
            (top / PART).mkdir(parents=True)
        except OSError:
            continue
        try:
            yield top / PART
        finally:
            parts = [top / PART, *(top / PART).parents]
            idle = lambda: not (top / PART / "cgroup.procs").read_text().strip()  # noqa: E731
            assert jobs.wait_until(idle, BOUND, step=0.1)
            for part in parts[: parts.index(top) + 1]:
                part.rmdir()
        return
    yield None


def in_kubernetes(scene, group):
    """Gives the broker what the chart gives it, and makes the service a container of a pod."""
    links = scene.folder / "containers"
    links.mkdir()
    # Their targets are not mounted into the broker's container.
    name = f"{POD['pod']}_{POD['namespace']}_{POD['container']}-{CONTAINER}.log"
    (links / name).symlink_to("/var/log/pods/gone")
    variables = {**scene.broker.variables(), "WEFT_NODE": "node-7", "WEFT_CONTAINER_LOGS": str(links)}
    scene.broker.variables = lambda: variables
    scene.groups = {"service": group} if group else {}


@pytest.fixture(scope="session")
def programs():
    try:
        return get(paths.TARGET / "prometheus")
    except debian.Unreachable as why:
        pytest.fail(f"Debian's package prometheus cannot be had: {why}")


class UnixConnection(http.client.HTTPConnection):
    def __init__(self, path):
        super().__init__("weft", timeout=BOUND)
        self.path = str(path)

    def connect(self):
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self.path)


def fetch(connection, target="/metrics", method="GET", **headers):
    """Status, media type and text."""
    connection.request(method, target, headers=headers)
    answer = connection.getresponse()
    text = answer.read().decode()
    connection.close()
    return answer.status, answer.headers["Content-Type"], text


def values(text):
    """Each series of a text, by name and labels."""
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    return {series: float(value) for series, value in (line.rsplit(" ", 1) for line in lines)}


def families(text):
    """The names that queries may use, of a text in format 0.0.4."""
    return set(re.findall(r"^# TYPE (\S+) ", text, re.MULTILINE))


def used(expression):
    return set(re.findall(r"\bweft_[a-z_]+\b", expression))


def expressions():
    """Each expression of the dashboard, with Grafana's variables filled in."""
    board = json.loads(DASHBOARD.read_text())
    found = [target["expr"] for panel in board["panels"] for target in panel["targets"]]
    filled = {"$instance": ".*", "$__rate_interval": "1m"}
    for variable, value in filled.items():
        found = [expression.replace(variable, value) for expression in found]
    left = [expression for expression in found if "$" in expression]
    assert found and not left, left
    return found


def config(address):
    """The example's, for this broker and with less patience."""
    text = (DEPLOY / "prometheus" / "scrape.yml").read_text()
    changes = [
        ("127.0.0.1:9431\"]", f"{address}\"]"),
        ("scrape_interval: 15s", "scrape_interval: 1s"),
        ("evaluation_interval: 15s", "evaluation_interval: 1s"),
        ("- rules.yml", f"- {RULES}"),
    ]
    for old, new in changes:
        assert text.count(old) == 1, f"{old} is not once in scrape.yml"
        text = text.replace(old, new)
    return text


def test_configuration_and_rules_are_what_prometheus_takes(programs):
    folder = DEPLOY / "prometheus"
    assert "SUCCESS" in promtool(programs, "check", "config", "scrape.yml", cwd=folder)
    assert "SUCCESS" in promtool(programs, "check", "rules", "rules.yml", cwd=folder)
    assert "SUCCESS" in promtool(programs, "test", "rules", "rules_test.yml", cwd=folder)


def test_the_text_is_the_same_by_command_socket_and_tcp(scene, programs):
    scene.broker.start()
    scene.pair()
    printed = weft(scene, "metrics")
    assert (printed.returncode, printed.stderr) == (0, ""), printed
    # Neither a fault nor a word about style.
    assert promtool(programs, "check", "metrics", given=printed.stdout) == "", printed.stdout
    names = families(printed.stdout)
    for connection in (UnixConnection(scene.socket), http.client.HTTPConnection(scene.address, timeout=BOUND)):
        status, media, text = fetch(connection)
        assert (status, media, families(text)) == (200, PLAIN, names), text
        assert promtool(programs, "check", "metrics", given=text) == "", text
        status, media, text = fetch(connection, Accept="application/openmetrics-text;version=1.0.0")
        assert (status, media) == (200, OPENMETRICS) and text.endswith("# EOF\n"), text
        # Warnings come and go: on a busy machine a job exceeds its slowdown for a moment.
        lasting = {series for series in values(text) if not series.startswith("weft_job_warnings{")}
        assert lasting <= {*values(printed.stdout), *values(weft(scene, "metrics").stdout)}, text
        assert fetch(connection, method="HEAD") == (200, PLAIN, "")
        assert fetch(connection, "/")[0] == 404
        assert fetch(connection, method="POST")[0] == 405
    assert stat.S_IMODE(scene.socket.stat().st_mode) == 0o600
    scene.broker.stop()
    assert not scene.socket.exists()
    done = weft(scene, "metrics")
    assert done.returncode == 1 and len(done.stderr.splitlines()) == 1, done


def test_a_jobs_counters_go_on_at_the_next_broker(scene):
    scene.broker.start()
    first = scene.companion("first", priority=5, pause=2000)
    scene.attached(first)
    # So the others do not have the first numbers.
    first.kill()
    jobs_of = scene.pair()

    def counters():
        found = values(weft(scene, "metrics").stdout)
        return {series: value for series, value in found.items() if re.match(r"weft_job_\w+_total{", series)}

    def whole():
        found = counters()
        ran = [value for series, value in found.items() if "_run_seconds_total" in series and 'gpu="GPU-' in series]
        # Longer than the next broker takes to count as much.
        return len(ran) == 2 and min(ran) > 5 and any("_gpu_seconds_total" in series for series in found)

    assert jobs.wait_until(whole, BOUND, step=0.5), counters()
    before = counters()
    scene.broker.stop()
    scene.broker.start()
    scene.attached(*jobs_of)
    assert jobs.wait_until(lambda: before.keys() <= counters().keys(), BOUND, step=0.5), (before, counters())
    after = counters()
    fallen = {series: (value, after[series]) for series, value in before.items() if after[series] < value}
    assert not fallen, fallen
    # A broker that is killed has kept what it answered.
    ran = sorted(value for series, value in after.items() if "_run_seconds_total" in series)

    def kept():
        with contextlib.closing(sqlite3.connect(scene.folder / "state" / "history.sqlite")) as file:
            books = [json.loads(sums) for (sums,) in file.execute("SELECT sums FROM open_books")]
        found = sorted(book["counters"]["run_s"] for book in books)
        return len(found) == len(ran) and all(map(operator.ge, found, ran))

    assert jobs.wait_until(kept, BOUND, step=0.1)
    scene.broker.kill()
    scene.broker.start()
    scene.attached(*jobs_of)
    assert jobs.wait_until(lambda: after.keys() <= counters().keys(), BOUND, step=0.5), (after, counters())
    again = counters()
    fallen = {series: (value, again[series]) for series, value in after.items() if again[series] < value}
    assert not fallen, fallen
    # A new job has a number that no job had.
    late = scene.companion("late", priority=5, pause=2000)
    scene.attached(late)
    numbers = [row["client"] for row in scene.status()["clients"]]
    assert sorted(numbers) == [2, 3, 4], numbers


def test_prometheus_scrapes_and_the_dashboard_finds_what_it_asks_for(scene, programs):
    with container() as group:
        in_kubernetes(scene, group)
        scene.broker.start()
        service, training = scene.pair()
        server = Prometheus(programs, scene.folder, of_pod(config(scene.address)))
        try:
            if group:
                look_at_pods(scene, server, service, training)
            look_at(scene, server, service, training, pods=group is not None)
        finally:
            server.stop()
            scene.close()
    if group is None:
        pytest.skip("all but the labels of pods: no control group can be made here")


def of_pod(text):
    """The configuration as the operator makes it of the chart's PodMonitor."""
    labels = "".join(f"\n          {name}: {value}" for name, value in TARGET.items())
    text = re.sub(r"(- targets: .*)", rf"\1\n        labels:{labels}", text)
    return text.replace("- job_name: weft", "- job_name: weft\n    honor_labels: true")


def look_at_pods(scene, server, service, training):
    """A job in a pod has the pod's names, another job none, the broker's series its own."""

    def names(labels):
        return {name: labels[name] for name in POD if name in labels}

    (in_pod,) = server.until(f'weft_job_info{{pid="{service.pid}"}}')
    assert names(in_pod[0]) == POD and in_pod[0]["node"] == "node-7", in_pod
    (outside,) = server.until(f'weft_job_info{{pid="{training.pid}"}}')
    assert names(outside[0]) == {}, outside
    (broker,) = server.until("weft_broker_info")
    assert names(broker[0]) == TARGET and broker[0]["node"] == "node-7", broker
    # The sums that docs/kubernetes.md shows.
    server.until('sum by (namespace, pod) (rate(weft_job_launches_total{pod!=""}[1m])) > 0')
    clients = {row["pid"]: row for row in scene.status()["clients"]}
    assert clients[service.pid]["pod"] == POD and clients[training.pid]["pod"] is None, clients


def look_at(scene, server, service, training, pods):
    server.until('up{job="weft"} == 1', what="the broker is scraped")
    for role, job in (("foreground", service), ("background", training)):
        found = server.until(f'weft_job_info{{role="{role}"}}')
        assert [labels["pid"] for labels, _ in found] == [str(job.pid)], found
        assert found[0][0]["name"] == "weft-test-companion", found
        assert found[0][0]["gpu"].startswith("GPU-"), found
    rates = server.until("rate(weft_job_launches_total[1m]) > 0", lambda rows: len(rows) == 2)
    assert {labels["pid"] for labels, _ in rates} == {str(service.pid), str(training.pid)}, rates
    # It was read as OpenMetrics: only that has units.
    metadata = server.api("targets/metadata", match_target='{job="weft"}')
    units = {row["metric"]: row["unit"] for row in metadata}
    assert units["weft_job_gpu_seconds"] == "seconds", units
    # Nothing was dropped: a series that is there twice would be.
    assert server.query("scrape_samples_scraped - scrape_samples_post_metric_relabeling")[0][1] == 0
    assert server.query('count({__name__=~"weft_.+"}) - on () scrape_samples_scraped')[0][1] == 0
    names = families(weft(scene, "metrics").stdout)
    for expression in expressions():
        if 'pod!=""' in expression and not pods:
            continue
        assert used(expression) and used(expression) <= names, f"{expression}: {used(expression) - names}"
        # Each panel has something to show, lateness included: the service waits, and is judged.
        server.until(expression, what=f"no series: {expression}")
    rules = server.api("rules")["groups"][0]["rules"]
    assert len(rules) >= 4, rules
    for rule in rules:
        assert used(rule["query"]) <= names and rule["health"] != "err", rule

    def alerts(state):
        return {alert["labels"]["alertname"] for alert in server.api("alerts")["alerts"] if alert["state"] == state}

    # Neither job has a profile. Firing takes minutes: promtool tests that.
    waits = jobs.wait_until(lambda: "WeftProtectionNotWorking" in alerts("pending"), BOUND, step=0.5)
    assert waits, server.api("alerts")
    assert "WeftBrokerGone" not in alerts("pending"), server.api("alerts")
    scene.broker.kill()
    server.until('up{job="weft"} == 0', what="the broker is gone")
    waits = jobs.wait_until(lambda: "WeftBrokerGone" in alerts("pending"), BOUND, step=0.5)
    assert waits, server.api("alerts")


def test_the_dashboard_is_laid_out():
    """Panels that Grafana would show one over the other, or not at all."""
    board = json.loads(DASHBOARD.read_text())
    taken = {}
    for panel in board["panels"]:
        place = panel["gridPos"]
        assert place["x"] + place["w"] <= 24, panel["title"]
        for x in range(place["x"], place["x"] + place["w"]):
            for y in range(place["y"], place["y"] + place["h"]):
                assert (x, y) not in taken, f"{panel['title']} over {taken[x, y]}"
                taken[x, y] = panel["title"]
    numbers = [panel["id"] for panel in board["panels"]]
    assert len(set(numbers)) == len(numbers)
    variables = {variable["name"] for variable in board["templating"]["list"]}
    asked = set(re.findall(r"\$\{?(\w+)", json.dumps(board["panels"])))
    assert asked - {"__rate_interval"} <= variables, asked
