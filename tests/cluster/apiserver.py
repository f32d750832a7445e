# SPDX-License-Identifier: MIT OR Apache-2.0
"""A stand-in for the API server and the scheduler of Kubernetes, over HTTPS: the part that a driver
of Dynamic Resource Allocation uses.

It knows accounts by their token, lets them do what their role allows, and keeps objects as an API
server does: with versions, with quantities in the canonical form, and without the fields that a
feature gate turns off. `written` has each object that was sent, for the published schemas. Rules
that no schema has (`slice_faults`, `allocate`) are those of Kubernetes 1.36: its validation of
ResourceSlices and its allocator.
"""

import copy
import http.server
import json
import re
import ssl
import subprocess
import threading
import uuid

# Seconds for one openssl command.
BOUND = 60
UNITS = {"Ki": 1 << 10, "Mi": 1 << 20, "Gi": 1 << 30, "k": 1000, "M": 1000**2, "G": 1000**3, "": 1}


def amount(quantity):
    """The number of a quantity. Only whole ones occur here."""
    number, unit = re.fullmatch(r"(\d+)(Ki|Mi|Gi|k|M|G|)", quantity).groups()
    return int(number) * UNITS[unit]


def canonical(quantity):
    """A binary quantity as an API server writes it, with the largest unit: 40960Mi is 40Gi."""
    for unit in ("Gi", "Mi", "Ki"):
        if quantity.endswith("i") and amount(quantity) and amount(quantity) % UNITS[unit] == 0:
            return f"{amount(quantity) // UNITS[unit]}{unit}"
    return quantity


def certificates(folder):
    """A certificate for 127.0.0.1, and the authority that signed it (`ca.crt`)."""

    def openssl(*words):
        words = ["openssl", *map(str, words)]
        subprocess.run(words, cwd=folder, check=True, capture_output=True, timeout=BOUND)

    (folder / "names").write_text("subjectAltName=IP:127.0.0.1\n")
    key = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2"]
    openssl("req", "-x509", *key, "-subj", "/CN=authority", "-keyout", "ca.key", "-out", "ca.crt")
    openssl("req", "-new", *key[:-2], "-subj", "/CN=server", "-keyout", "server.key", "-out", "csr")
    signed = ["-CA", "ca.crt", "-CAkey", "ca.key", "-CAcreateserial", "-days", "2"]
    openssl("x509", "-req", "-in", "csr", *signed, "-extfile", "names", "-out", "server.crt")


def slice_faults(spec):
    """Breaches of the rules for a ResourceSlice that its schema does not have."""
    label = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")
    for device in spec.get("devices", []):
        if not label.fullmatch(device["name"]):
            yield f"{device['name']} is no label"
        for name, attribute in device["attributes"].items():
            if len(attribute) != 1 or len(str(*attribute.values())) > 64:
                yield f"attribute {name}: {attribute}"
        for name, capacity in device["capacity"].items():
            if policy := capacity.get("requestPolicy"):
                if not device.get("allowMultipleAllocations"):
                    yield f"{name}: a policy needs allowMultipleAllocations"
                whole, default = amount(capacity["value"]), amount(policy["default"])
                bounds = {key: amount(value) for key, value in policy["validRange"].items()}
                least, most = bounds["min"], bounds.get("max", whole)
                if not least <= default <= most <= whole:
                    yield f"{name}: {policy} of {whole}"
                if step := bounds.get("step"):
                    ends = [default, *([most] if "max" in bounds else [])]
                    if least + step > whole or any((end - least) % step for end in ends):
                        yield f"{name}: step of {policy}"


class ApiServer:
    """Objects by their paths. `fail` is a status for all requests, if set; `consumable` the feature
    gate DRAConsumableCapacity; `role` the rules of the account's ClusterRole."""

    def __init__(self, folder, role):
        folder.mkdir()
        certificates(folder)
        self.folder, self.role = folder, role
        self.objects, self.written, self.requests = {}, [], []
        self.fail, self.consumable = None, True
        self.lock, self.number = threading.Lock(), 0
        self.renew("first")
        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), self.handler())
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(folder / "server.crt", folder / "server.key")
        self.server.socket = context.wrap_socket(self.server.socket, server_side=True)
        self.address = f"127.0.0.1:{self.server.server_address[1]}"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def renew(self, token):
        """Makes this the account's token, as the kubelet renews it in the account's folder."""
        self.token = token
        (self.folder / "token").write_text(token)

    def close(self):
        self.server.shutdown()
        self.server.server_close()

    def put(self, path, item):
        """Stores an object as an administrator, or the scheduler, does."""
        with self.lock:
            return self.store(path, item)

    def remove(self, path):
        with self.lock:
            return self.objects.pop(path)

    def get(self, path):
        with self.lock:
            return copy.deepcopy(self.objects.get(path))

    def store(self, path, item):
        self.number += 1
        item = copy.deepcopy(item)
        before = self.objects.get(path, {}).get("metadata", {})
        item["metadata"].setdefault("uid", before.get("uid", str(uuid.uuid4())))
        item["metadata"]["resourceVersion"] = str(self.number)
        is_slice = item.get("kind") == "ResourceSlice"
        for device in item["spec"].get("devices", []) if is_slice else []:
            for capacity in device["capacity"].values():
                capacity["value"] = canonical(capacity["value"])
                if not self.consumable:
                    capacity.pop("requestPolicy", None)
            if not self.consumable:
                device.pop("allowMultipleAllocations", None)
        self.objects[path] = item
        return copy.deepcopy(item)

    def allowed(self, verb, path):
        group, *rest = path.removeprefix("/apis/").removeprefix("/api/").split("/")[0:]
        kinds = [part for part in rest if part in ("resourceslices", "resourceclaims", "nodes")]
        group = group if path.startswith("/apis/") else ""
        return any(
            group in rule["apiGroups"] and kinds[-1:] == [kind] and verb in rule["verbs"]
            for rule in self.role
            for kind in rule["resources"]
        )

    def answer(self, method, path, token, body):
        """Status and object, as an API server answers."""
        verb = {"GET": "get", "POST": "create", "PUT": "update", "DELETE": "delete"}[method]
        self.requests.append((verb, path))
        if self.fail:
            return self.fail, "the stand-in fails"
        if token != f"Bearer {self.token}":
            return 401, "Unauthorized"
        if not self.allowed(verb, path):
            return 403, f"cannot {verb} {path}"
        there = self.objects.get(path)
        if method == "GET":
            return (200, there) if there else (404, "not found")
        self.written.append(body)
        if faults := list(slice_faults(body["spec"])):
            return 422, "; ".join(faults)
        if method == "POST":
            path = f"{path}/{body['metadata']['name']}"
            return (409, "already exists") if path in self.objects else (201, self.store(path, body))
        if there is None:
            return 404, "not found"
        if body["metadata"].get("resourceVersion") != there["metadata"]["resourceVersion"]:
            return 409, "the object has been modified"
        for name in ("driver", "nodeName"):
            if body["spec"][name] != there["spec"][name]:
                return 422, f"spec.{name}: field is immutable"
        return 200, self.store(path, body)

    def handler(stand_in):
        class Handler(http.server.BaseHTTPRequestHandler):
            def handle_any(self):
                length = int(self.headers.get("Content-Length") or 0)
                body = json.loads(self.rfile.read(length) or "null")
                with stand_in.lock:
                    token = self.headers.get("Authorization")
                    code, found = stand_in.answer(self.command, self.path, token, body)
                if isinstance(found, str):
                    found = {"kind": "Status", "apiVersion": "v1", "message": found, "code": code}
                text = json.dumps(found).encode()
                self.send_response(code)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(text)))
                self.end_headers()
                self.wfile.write(text)

            do_GET = do_POST = do_PUT = do_DELETE = handle_any

            def log_message(self, *_):
                pass

        return Handler


def consumed(capacity, asked):
    """The amount that a request takes of a device's capacity, or None if it is not valid."""
    policy = capacity.get("requestPolicy")
    if asked is None:
        return amount(policy["default"] if policy else capacity["value"])
    asked = amount(asked)
    if policy:
        bounds = {key: amount(value) for key, value in policy["validRange"].items()}
        asked = max(asked, bounds["min"])
        if step := bounds.get("step"):
            asked = bounds["min"] + -(-(asked - bounds["min"]) // step) * step
        if asked > bounds.get("max", asked):
            return None
    return asked


def allocate(claim, slice_, klass, others):
    """The claim as the scheduler writes it, on the devices of a slice; None if it does not fit.
    `others`: claims that are allocated. A constraint is taken for "all requests of one GPU"."""
    devices = claim["spec"]["devices"]
    if devices.get("constraints"):
        rest = copy.deepcopy(claim)
        del rest["spec"]["devices"]["constraints"]
        for device in slice_["spec"]["devices"]:
            alone = {**slice_, "spec": {**slice_["spec"], "devices": [device]}}
            if found := allocate(rest, alone, klass, others):
                return {**found, "spec": claim["spec"]}
        return None
    taken = [one for other in others for one in other["status"]["allocation"]["devices"]["results"]]
    results, config = [], [{"source": "FromClass", **one} for one in klass["spec"].get("config", [])]
    for request in devices["requests"]:
        exact, left = request["exactly"], request["exactly"].get("count", 1)
        asked = exact.get("capacity", {}).get("requests", {})
        for device in slice_["spec"]["devices"]:
            of = [one for one in taken + results if one["device"] == device["name"]]
            if not left or of and not device.get("allowMultipleAllocations"):
                continue
            if any(one in results and one["request"] == request["name"] for one in of):
                continue
            wants = {name: consumed(each, asked.get(name)) for name, each in device["capacity"].items()}
            had = {name: sum(amount(one["consumedCapacity"][name]) for one in of) for name in wants}
            room = {name: amount(each["value"]) for name, each in device["capacity"].items()}
            fits = all(want is not None and had[name] + want <= room[name] for name, want in wants.items())
            if not fits or asked.keys() - wants.keys():
                continue
            left -= 1
            result = {"request": request["name"], "driver": slice_["spec"]["driver"]}
            result |= {"pool": slice_["spec"]["pool"]["name"], "device": device["name"]}
            if device.get("allowMultipleAllocations"):
                result["shareID"] = str(uuid.uuid4())
                result["consumedCapacity"] = {name: str(want) for name, want in wants.items()}
            results.append(result)
        if left:
            return None
    config += [{"source": "FromClaim", **one} for one in devices.get("config", [])]
    claim = copy.deepcopy(claim)
    claim["status"] = {"allocation": {"devices": {"results": results, "config": config}}}
    return claim
