#!/usr/bin/env python3
"""Compares manifests with the schemas of Kubernetes' API, and takes out what the pod of one runs.

manifests.py FILE...          every object, by every version that is supported
manifests.py --pod FILE DIR   writes the container's command, its probes' paths and its preStop command into DIR, a word a
                              line, with the paths of the machine replaced by paths below DIR, and its configuration
manifests.py --gateway FILE DIR   likewise the command of a gateway's pod, and its tokens
"""

import socket
import sys
from pathlib import Path

import kubernetes_validate
import yaml

VERSIONS = ["1.30", "1.33", "1.35", "1.37"]
# Kinds that are no part of Kubernetes: their fields as the Prometheus operator documents them.
OTHERS = {
    ("monitoring.coreos.com/v1", "ServiceMonitor"): {"selector", "endpoints"},
    ("monitoring.coreos.com/v1", "PrometheusRule"): {"groups"},
}
PATHS = {
    "/run/pappus-admin": "pappus-admin",
    "/run/pappus": "pappus",
    "/var/lib/pappus": "state",
    "/etc/pappus/tokens": "tokens",
    "/etc/pappus": ".",
}


def objects(path):
    return [thing for thing in yaml.safe_load_all(Path(path).read_text()) if thing]


def check(path):
    found = objects(path)
    for thing in found:
        kind = (thing["apiVersion"], thing["kind"])
        name = f"{path}: {thing['kind']} {thing['metadata']['name']}"
        if kind in OTHERS:
            assert set(thing["spec"]) == OTHERS[kind], f"{name}: {set(thing['spec'])}"
            continue
        for version in VERSIONS:
            try:
                kubernetes_validate.validate(thing, version, strict=True)
            except kubernetes_validate.ValidationError as error:
                sys.exit(f"{name}, Kubernetes {version}: {'.'.join(map(str, error.path))}: {error.message}")
        if "template" in thing.get("spec", {}):
            check_pod(name, thing["spec"]["template"]["spec"], thing)
        if thing["kind"] == "Pod":
            check_pod(name, thing["spec"], thing)
    print(f"{path}: {len(found)} objects, Kubernetes {', '.join(VERSIONS)}")


def check_pod(name, pod, thing):
    """What the server demands beyond the schemas, and what this project does."""
    if thing["kind"] == "DaemonSet":
        labels = thing["spec"]["template"]["metadata"]["labels"]
        selector = thing["spec"]["selector"]["matchLabels"]
        assert selector.items() <= labels.items(), f"{name}: the selector does not select its pods"
        roll = thing["spec"]["updateStrategy"]["rollingUpdate"]
        assert (roll["maxSurge"], roll["maxUnavailable"]) == (0, 1), f"{name}: two on a machine"
    volumes = {volume["name"]: volume for volume in pod.get("volumes", [])}
    for container in pod["containers"]:
        context = container["securityContext"]
        added = context["capabilities"].get("add", [])
        assert context["capabilities"]["drop"] == ["ALL"] and not context.get("privileged"), name
        assert not ("SYS_ADMIN" in added and not context["allowPrivilegeEscalation"]), f"{name}: refused by the API"
        assert not ("procMount" in context and pod.get("hostUsers") is not False), f"{name}: refused by the API"
        assert pod.get("hostUsers") is not False or not pod.get("hostNetwork"), f"{name}: refused by the API"
        assert context["readOnlyRootFilesystem"] and pod["automountServiceAccountToken"] is False, name
        mounts = {mount["name"]: mount for mount in container.get("volumeMounts", [])}
        assert mounts.keys() <= volumes.keys(), f"{name}: a mount without a volume"
        ports = {port["name"] for port in container.get("ports", [])}
        for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
            port = container.get(probe, {}).get("httpGet", {}).get("port")
            assert port is None or port in ports, f"{name}: {probe} asks a port that is not there"
        resources = container["resources"]
        for resource, amount in (resources.get("limits") or {}).items():
            if "/" in resource:
                # An extended resource cannot be promised twice.
                assert resources["requests"].get(resource) == amount, f"{name}: {resource}"
        if thing["kind"] != "DaemonSet":
            continue
        arguments = dict(argument[2:].split("=", 1) for argument in container["args"] if not argument.startswith("--device"))
        shared = mounts["socket"]["mountPath"]
        assert str(Path(arguments["socket"]).parent) == shared and "hostPath" in volumes["socket"], name
        if container["name"] == "gateway":
            # Beside the supervisor, without any of its rights.
            assert mounts["socket"]["readOnly"] and context["runAsNonRoot"] and not added, name
            continue
        # Whoever opens the operators' socket is the operator.
        assert not arguments["admin-socket"].startswith(shared + "/") and "emptyDir" in volumes["admin"], name
        memory = [device for device in container["args"] if device.startswith("--device=cuda")]
        counted = any("/gpu" in resource for resource in (resources.get("limits") or {}))
        assert counted or all("memory=" in device for device in memory), f"{name}: memory that nobody is told of"


def replaced(text, folder):
    for path, name in PATHS.items():
        text = text.replace(path + "/", f"{folder}/{name}/").replace("=" + path, f"={folder}/{name}")
    return text


def write_pod(path, folder):
    found = objects(path)
    [daemon] = [thing for thing in found if thing["kind"] == "DaemonSet"]
    [container] = daemon["spec"]["template"]["spec"]["containers"]
    [config] = [thing for thing in found if thing["kind"] == "Secret"]
    folder = Path(folder)
    (folder / "pappus.toml").write_text(config["stringData"]["pappus.toml"])
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    words = [replaced(word, folder) for word in container["command"] + container["args"]]
    words = [f"--metrics=127.0.0.1:{port}" if word.startswith("--metrics=") else word for word in words]
    (folder / "command").write_text("\n".join(words) + "\n")
    (folder / "port").write_text(str(port))
    for name, probe in (("readiness", "readinessProbe"), ("liveness", "livenessProbe")):
        (folder / name).write_text(container[probe]["httpGet"]["path"])
    stop = container["lifecycle"]["preStop"]["exec"]["command"]
    (folder / "prestop").write_text("\n".join(replaced(word, folder) for word in stop) + "\n")


def write_gateway(path, folder):
    secret, pod = objects(path)
    tokens = Path(folder) / "tokens"
    tokens.mkdir(exist_ok=True)
    for name, token in secret["stringData"].items():
        (tokens / name).write_text(token)
    words = [replaced(word, folder) for word in pod["spec"]["containers"][0]["command"]]
    (Path(folder) / "command").write_text("\n".join(words) + "\n")


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["--gateway", path, folder]:
            write_gateway(path, folder)
        case ["--pod", path, folder]:
            write_pod(path, folder)
        case [_, *_] as paths:
            for path in paths:
                check(path)
        case _:
            sys.exit(__doc__)
