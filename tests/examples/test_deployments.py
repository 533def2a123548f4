"""examples/kubernetes and examples/compose: valid by Kubernetes' own schemas, and true to what the
server does."""

import copy
import json
import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import typer

from posrec.cli import app
from tests.helpers import ROOT

yaml = pytest.importorskip("yaml")
KUBERNETES = ROOT / "examples" / "kubernetes"
COMPOSE = ROOT / "examples" / "compose"
ON_A_VOLUME = ROOT / "examples" / "kubernetes-on-a-volume"
Manifest = dict[str, Any]


def documents(path: Path) -> list[Manifest]:
    return list(yaml.safe_load_all(path.read_text(encoding="utf-8")))


def docs_text(name: str) -> str:
    """A file of docs/, with its continued lines joined."""
    return (ROOT / "docs" / name).read_text(encoding="utf-8").replace("\\\n", " ")


def manifests(folder: Path = KUBERNETES) -> list[Manifest]:
    """Everything that is in the folder of a kustomization, all of which it applies."""
    (kustomization,) = documents(folder / "kustomization.yaml")
    names = [name for name in kustomization["resources"] if name.endswith(".yaml")]
    files = {path.name for path in folder.glob("*.yaml")}
    assert {*names, "kustomization.yaml"} == files
    return [manifest for name in names for manifest in documents(folder / name)]


def named(kind: str, name: str = "posrec", folder: Path = KUBERNETES) -> Manifest:
    (manifest,) = [
        manifest
        for manifest in manifests(folder)
        if (manifest["kind"], manifest["metadata"]["name"]) == (kind, name)
    ]
    return manifest


def pod(deployment: Manifest) -> Any:
    return deployment["spec"]["template"]["spec"]


def on_a_volume() -> Manifest:
    """The Deployment after the JSON patches of kubernetes-on-a-volume."""
    (kustomization,) = documents(ON_A_VOLUME / "kustomization.yaml")
    assert (ON_A_VOLUME / kustomization["resources"][0]).resolve() == KUBERNETES
    deployment = copy.deepcopy(named("Deployment"))
    (patch,) = kustomization["patches"]
    for step in yaml.safe_load(patch["patch"]):
        apply_step(deployment, step)
    return deployment


def apply_step(deployment: Manifest, step: Manifest) -> None:
    words = step["path"].strip("/").split("/")
    *above, last = (int(word) if word.isdigit() else word for word in words)
    parent: Any = deployment
    for key in above:
        parent = parent[key]
    if step["op"] == "add":
        assert last == "-", "only lists get longer"
        parent.append(step["value"])
    elif step["op"] == "remove":
        del parent[last]
    else:
        assert parent[last] is not None, "only what exists is replaced"
        parent[last] = step["value"]


def test_kubernetes_accepts_every_manifest() -> None:
    validator = pytest.importorskip("kubernetes_validate")
    for manifest in [*manifests(), *manifests(ON_A_VOLUME), on_a_volume()]:
        validator.validate(manifest, "1.31", strict=True)


def test_names_and_labels_fit_together() -> None:
    for deployment in manifests():
        if deployment["kind"] == "Deployment":
            service = named("Service", deployment["metadata"]["name"])["spec"]
            labels = deployment["spec"]["template"]["metadata"]["labels"]
            assert deployment["spec"]["selector"]["matchLabels"] == labels
            assert service["selector"] == labels
            (container,) = pod(deployment)["containers"]
            ports = [port["name"] for port in container["ports"]]
            assert service["ports"][0]["targetPort"] in ports
    target = named("HorizontalPodAutoscaler")["spec"]["scaleTargetRef"]
    expected = {"apiVersion": "apps/v1", "kind": "Deployment", "name": "posrec"}
    assert target == expected
    budget = named("PodDisruptionBudget")["spec"]
    assert budget["selector"] == named("Deployment")["spec"]["selector"]


@pytest.mark.parametrize(
    "deployment", [named("Deployment"), on_a_volume()], ids=["by URL", "on a volume"]
)
def test_the_deployment_is_what_the_server_needs(deployment: Manifest) -> None:
    (container,) = pod(deployment)["containers"]
    assert container["startupProbe"]["httpGet"]["path"] == "/healthz"
    assert container["readinessProbe"]["httpGet"]["path"] == "/readyz"
    assert container["livenessProbe"]["httpGet"]["path"] == "/healthz"
    pause = int(container["lifecycle"]["preStop"]["exec"]["command"][1])
    finishing = 20  # seconds in which the server finishes open requests
    assert pod(deployment)["terminationGracePeriodSeconds"] >= pause + finishing
    mounts = {mount["name"]: mount for mount in container["volumeMounts"]}
    assert mounts["runs"]["readOnly"]
    assert container["args"][0].startswith(mounts["runs"]["mountPath"])
    assert {volume["name"] for volume in pod(deployment)["volumes"]} == mounts.keys()
    variables = {variable["name"]: variable for variable in container["env"]}
    # Kubernetes does not start a container whose secret is missing, unless it is optional.
    secret = {"secretKeyRef": {"name": "posrec", "key": "api-key"}}
    assert variables["POSREC_API_KEY"]["valueFrom"] == secret
    store = variables["POSREC_SESSION_STORE"]["value"]
    host = store.removeprefix("redis://").removesuffix(":6379/0")
    assert named("Service", host)["spec"]["ports"][0]["port"] == 6379


def test_the_nightly_training_writes_the_volume_that_is_served() -> None:
    job = named("CronJob", "posrec-nightly", ON_A_VOLUME)["spec"]["jobTemplate"]
    night = pod(job)
    served = pod(on_a_volume())
    (trainer,) = night["containers"]
    (server,) = served["containers"]
    assert trainer["image"] == server["image"]
    mounts = {mount["name"]: mount["mountPath"] for mount in trainer["volumeMounts"]}
    assert {volume["name"] for volume in night["volumes"]} == mounts.keys()
    assert mounts["runs"] == "/runs"
    assert server["args"][0] == "/runs/current"
    claims = {
        manifest["metadata"]["name"]
        for manifest in manifests(ON_A_VOLUME)
        if manifest["kind"] == "PersistentVolumeClaim"
    }
    claimed = {
        volume["persistentVolumeClaim"]["claimName"]
        for volume in (*night["volumes"], *served["volumes"])
        if "persistentVolumeClaim" in volume
    }
    assert claimed - claims == {"shop-log"}  # which the shop has
    program, *command = trainer["command"]
    assert (program, command) == ("posrec", ["nightly"])
    posrec: Any = typer.main.get_command(app)
    options = posrec.commands["nightly"].make_context("nightly", trainer["args"]).params
    assert (str(options["home"]), options["log"]) == ("/runs", "/log/clicks-*.csv.gz")


def command_lines() -> dict[str, list[str]]:
    """The arguments of `posrec serve` in every example."""
    (compose,) = documents(COMPOSE / "compose.yaml")
    added = {
        "compose": compose["services"]["posrec-a"]["command"],
        "by URL": pod(named("Deployment"))["containers"][0]["args"],
        "on a volume": pod(on_a_volume())["containers"][0]["args"],
    }
    for line in re.findall(r"^docker run .*$", docs_text("deploying.md"), re.MULTILINE):
        added[line] = shlex.split(line.partition(" posrec ")[2])
    entry_point = r"^ENTRYPOINT (.*)$"
    (image,) = re.findall(entry_point, docs_text("Dockerfile"), re.MULTILINE)
    program, command, *arguments = json.loads(image)
    assert (program, command) == ("posrec", "serve")
    lines = {name: [*arguments, *more] for name, more in added.items()}
    exec_start = r"^ExecStart=\S+ serve (.*)$"
    (unit,) = re.findall(exec_start, docs_text("posrec@.service"), re.MULTILINE)
    filled = unit.replace("${PORT}", "8000").replace("${HOST}", "shop.example")
    return {**lines, "systemd": shlex.split(filled)}


@pytest.mark.parametrize("name", command_lines())
def test_the_command_line_of_every_example_is_accepted(name: str) -> None:
    command: Any = typer.main.get_command(app)
    context = command.commands["serve"].make_context("serve", command_lines()[name])
    assert len(context.params["run"]) == 1
    host = "127.0.0.1" if name == "systemd" else "0.0.0.0"
    assert context.params["host"] == host


def test_the_compose_file_names_what_nginx_sends_to() -> None:
    (compose,) = documents(COMPOSE / "compose.yaml")
    services = compose["services"]
    nginx = (COMPOSE / "nginx.conf").read_text(encoding="utf-8")
    servers = re.findall(r"server (posrec-\w+):8000 ", nginx)
    assert sorted(servers) == ["posrec-a", "posrec-b"]
    assert {*servers, "nginx", "valkey"} == services.keys()
    (port,) = re.findall(r"listen (\d+);", nginx)
    assert services["nginx"]["ports"][0].endswith(f":{port}")
    for name in servers:
        service = services[name]
        environment = service["environment"]
        assert environment["POSREC_SESSION_STORE"] == "redis://valkey:6379/0"
        # Compose stops if it is not set or empty.
        assert environment["POSREC_API_KEY"].startswith("${POSREC_API_KEY:?")
        assert service["volumes"][0].endswith(":/runs:ro")
        build = service["build"]
        assert (COMPOSE / build["context"] / build["dockerfile"]).is_file()
