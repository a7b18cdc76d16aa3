"""As much of a Kubernetes API server as `kubectl` needs to cordon, taint, drain and patch a node.

It keeps what belongs to whom as the real one does: a patch of a node leaves its status alone, a patch of its status
leaves the rest alone, and a pod that a disruption budget protects is not evicted. Whatever it is asked for, it notes.
"""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar
from urllib.parse import parse_qs, urlsplit

__all__ = ["ApiServer", "Asked", "a_node", "a_pod", "api_server", "merged"]

_MERGE_KEYS = {"conditions": "type"}
"""Lists of a Node that a strategic merge patch merges by a key; all others it replaces."""

_CORE = (
    ("nodes", "Node", False, "get list patch update"),
    ("nodes/status", "Node", False, "get patch update"),
    ("pods", "Pod", True, "delete get list"),
    ("pods/eviction", "Eviction", True, "create"),
)
_APPS = (("daemonsets", "DaemonSet", True, "get list"),)


def merged(content: Any, patch: Any, key: str = "") -> Any:  # noqa: ANN401 - JSON
    """What a strategic merge patch makes of JSON."""
    if isinstance(content, dict) and isinstance(patch, dict):
        kept = {name: value for name, value in content.items() if name not in patch or patch[name] is not None}
        told = {name: value for name, value in patch.items() if value is not None and not name.startswith("$")}
        return kept | {name: merged(kept.get(name), value, name) for name, value in told.items()}
    if isinstance(patch, list) and key in _MERGE_KEYS:
        by = _MERGE_KEYS[key]
        found = {each[by]: each for each in content or ()}
        for each in patch:
            found[each[by]] = merged(found.get(each[by]), each)
        return list(found.values())
    if isinstance(patch, dict):
        return merged({}, patch, key)
    return patch


def a_node(name: str, **spec: Any) -> dict[str, Any]:  # noqa: ANN401 - members of a node's spec
    """A node that is ready."""
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "uid": f"uid-{name}", "resourceVersion": "1", "labels": {}},
        "spec": spec,
        "status": {"conditions": [{"type": "Ready", "status": "True", "reason": "KubeletReady", "message": "ready"}]},
    }


def a_pod(name: str, node: str, owner: str = "ReplicaSet", *, is_local: bool = False) -> dict[str, Any]:
    """A pod that runs on a node.

    Args:
        name: In the namespace ``default``.
        node: Where it runs.
        owner: Kind of what made it; empty for nobody.
        is_local: Whether it keeps something in an emptyDir.
    """
    owners = [{"apiVersion": "apps/v1", "kind": owner, "name": "owner", "uid": "uid-owner", "controller": True}]
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": name,
            "namespace": "default",
            "uid": f"uid-{name}",
            "resourceVersion": "1",
            **({"ownerReferences": owners} if owner else {}),
        },
        "spec": {
            "nodeName": node,
            "containers": [{"name": "main", "image": "main"}],
            "volumes": [{"name": "scratch", "emptyDir": {}}] if is_local else [],
        },
        "status": {"phase": "Running"},
    }


@dataclass(frozen=True)
class Asked:
    """A request."""

    method: str
    path: str
    body: Any = None


@dataclass
class ApiServer:
    """The cluster behind it.

    Attributes:
        port: At 127.0.0.1.
        nodes: By name.
        pods: By name.
        protected: Names of pods that a disruption budget protects.
        forbidden: What nobody may do: a method and the beginning of a path.
        asked: Requests, without discovery.
    """

    port: int = 0
    nodes: dict[str, dict[str, Any]] = field(default_factory=dict)
    pods: dict[str, dict[str, Any]] = field(default_factory=dict)
    protected: set[str] = field(default_factory=set)
    forbidden: set[tuple[str, str]] = field(default_factory=set)
    asked: list[Asked] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def add(self, *objects: Mapping[str, Any]) -> None:
        """Nodes and pods."""
        for each in objects:
            kept = self.nodes if each["kind"] == "Node" else self.pods
            kept[each["metadata"]["name"]] = dict(each)

    def conditions(self, node: str) -> dict[str, str]:
        """Status of each condition by its type."""
        return {each["type"]: each["status"] for each in self.nodes[node]["status"]["conditions"]}

    def write_kubeconfig(self, path: Path) -> Path:
        """A kubeconfig whose context ``here`` leads to this server, and whose current one leads nowhere."""
        ports = {"here": self.port, "nowhere": 1}
        content = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [
                {"name": name, "cluster": {"server": f"http://127.0.0.1:{port}"}} for name, port in ports.items()
            ],
            "users": [{"name": "forewarn", "user": {"token": "t"}}],
            "contexts": [{"name": name, "context": {"cluster": name, "user": "forewarn"}} for name in ports],
            "current-context": "nowhere",
        }
        path.write_text(json.dumps(content))
        return path

    def answer(self, method: str, path: str, query: Mapping[str, Sequence[str]], body: Any) -> tuple[int, Any]:  # noqa: ANN401 - JSON
        """Status and body of the answer to a request."""
        if path in _DISCOVERY:
            return 200, _DISCOVERY[path]
        self.asked.append(Asked(method, path, body))
        if any(method == refused and path.startswith(beginning) for refused, beginning in self.forbidden):
            return _status(403, "Forbidden", f'{path} is forbidden: User "forewarn" cannot {method.lower()} it')
        for (wanted, pattern), route in self._ROUTES.items():
            match = re.fullmatch(pattern, path)
            if method == wanted and match:
                return route(self, match, query, body)
        return _status(404, "NotFound", "the server could not find the requested resource")

    def _get_node(self, match: re.Match[str], *_: object) -> tuple[int, Any]:
        node = self.nodes.get(match["name"])
        return (200, node) if node else _missing("nodes", match["name"])

    def _patch_node(self, match: re.Match[str], _query: object, body: Any) -> tuple[int, Any]:  # noqa: ANN401 - JSON
        node = self.nodes.get(match["name"])
        if node is None:
            return _missing("nodes", match["name"])
        is_status = match["sub"] == "/status"
        kept = {"status"} if not is_status else {"spec"}
        changed = merged(node, {name: value for name, value in body.items() if name not in kept})
        if changed != node:
            version = str(int(node["metadata"]["resourceVersion"]) + 1)
            changed["metadata"] = changed["metadata"] | {"resourceVersion": version}
        self.nodes[match["name"]] = changed
        return 200, changed

    def _list_pods(self, _match: object, query: Mapping[str, Sequence[str]], _body: object) -> tuple[int, Any]:
        wanted = query.get("fieldSelector", [""])[0].removeprefix("spec.nodeName=")
        found = [pod for pod in self.pods.values() if not wanted or pod["spec"]["nodeName"] == wanted]
        return 200, {"apiVersion": "v1", "kind": "PodList", "metadata": {"resourceVersion": "1"}, "items": found}

    def _get_pod(self, match: re.Match[str], *_: object) -> tuple[int, Any]:
        pod = self.pods.get(match["name"])
        return (200, pod) if pod else _missing("pods", match["name"])

    def _evict(self, match: re.Match[str], *_: object) -> tuple[int, Any]:
        if match["name"] in self.protected:
            text = "Cannot evict pod as it would violate the pod's disruption budget."
            return _status(429, "TooManyRequests", text)
        if self.pods.pop(match["name"], None) is None:
            return _missing("pods", match["name"])
        return 201, {"apiVersion": "v1", "kind": "Status", "metadata": {}, "status": "Success", "code": 201}

    def _get_daemonset(self, match: re.Match[str], *_: object) -> tuple[int, Any]:
        metadata = {"name": match["name"], "namespace": match["namespace"], "uid": "uid-owner"}
        return 200, {"apiVersion": "apps/v1", "kind": "DaemonSet", "metadata": metadata}

    _ROUTES: ClassVar[dict[tuple[str, str], Callable[..., tuple[int, Any]]]] = {
        ("GET", r"/api/v1/nodes/(?P<name>[^/]+)(?:/status)?"): _get_node,
        ("PATCH", r"/api/v1/nodes/(?P<name>[^/]+)(?P<sub>/status)?"): _patch_node,
        ("GET", r"/api/v1/pods"): _list_pods,
        ("GET", r"/api/v1/namespaces/(?P<namespace>[^/]+)/pods/(?P<name>[^/]+)"): _get_pod,
        ("POST", r"/api/v1/namespaces/(?P<namespace>[^/]+)/pods/(?P<name>[^/]+)/eviction"): _evict,
        ("GET", r"/apis/apps/v1/namespaces/(?P<namespace>[^/]+)/daemonsets/(?P<name>[^/]+)"): _get_daemonset,
    }


def _status(code: int, reason: str, message: str, **more: Any) -> tuple[int, Any]:  # noqa: ANN401 - JSON
    body = {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure", "message": message}
    return code, {**body, "reason": reason, "code": code, **more}


def _missing(kind: str, name: str) -> tuple[int, Any]:
    return _status(404, "NotFound", f'{kind} "{name}" not found', details={"name": name, "kind": kind})


def _resources(version: str, rows: Sequence[tuple[str, str, bool, str]]) -> dict[str, Any]:
    listed = []
    for name, kind, is_namespaced, verbs in rows:
        row = {"name": name, "singularName": kind.lower(), "namespaced": is_namespaced, "kind": kind}
        policy = {"group": "policy", "version": "v1"} if kind == "Eviction" else {}
        listed.append({**row, **policy, "verbs": verbs.split()})
    return {"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": version, "resources": listed}


def _group(name: str) -> dict[str, Any]:
    version = {"groupVersion": f"{name}/v1", "version": "v1"}
    return {"name": name, "versions": [version], "preferredVersion": version}


_DISCOVERY: dict[str, Any] = {
    "/version": {"major": "1", "minor": "32", "gitVersion": "v1.32.0", "platform": "linux/amd64"},
    "/api": {"kind": "APIVersions", "versions": ["v1"], "serverAddressByClientCIDRs": []},
    "/apis": {"kind": "APIGroupList", "apiVersion": "v1", "groups": [_group("apps"), _group("policy")]},
    "/api/v1": _resources("v1", _CORE),
    "/apis/apps/v1": _resources("apps/v1", _APPS),
    "/apis/policy/v1": _resources("policy/v1", ()),
}


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    cluster: ClassVar[ApiServer]

    def _handle(self) -> None:
        parts = urlsplit(self.path)
        size = int(self.headers.get("Content-Length") or 0)
        content = self.rfile.read(size)
        with self.cluster.lock:
            code, body = self.cluster.answer(self.command, parts.path, parse_qs(parts.query), _decoded(content))
            answer = json.dumps(body).encode()
        self.send_response(code)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    do_GET = do_PATCH = do_POST = do_DELETE = do_PUT = _handle  # noqa: N815 - names of http.server

    def log_message(self, *_: object) -> None:
        """Nobody reads it."""


def _decoded(content: bytes) -> Any:  # noqa: ANN401 - JSON
    try:
        return json.loads(content) if content else None
    except ValueError:
        return {"not JSON": content.hex()}


@contextmanager
def api_server() -> Iterator[ApiServer]:
    """A server of its own, at a port of its own."""
    cluster = ApiServer()
    handler = type("Handler", (_Handler,), {"cluster": cluster})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    server.daemon_threads = True
    cluster.port = server.server_address[1]
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
    thread.start()
    try:
        yield cluster
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
