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
from tests.helpers import ROOT, module_at

yaml = pytest.importorskip("yaml")
KUBERNETES = ROOT / "examples" / "kubernetes"
COMPOSE = ROOT / "examples" / "compose"
ON_A_VOLUME = ROOT / "examples" / "kubernetes-on-a-volume"


def documents(path: Path) -> list[dict[str, Any]]:
    return list(yaml.safe_load_all(path.read_text(encoding="utf-8")))


def manifests(folder: Path = KUBERNETES) -> list[dict[str, Any]]:
    """Everything that is in the folder of a kustomization, all of which it applies."""
    (kustomization,) = documents(folder / "kustomization.yaml")
    names = [name for name in kustomization["resources"] if name.endswith(".yaml")]
    assert sorted(names) == sorted(
        path.name for path in folder.glob("*.yaml") if path.name != "kustomization.yaml"
    )
    return [one for name in names for one in documents(folder / name)]


def named(kind: str, name: str = "posrec", folder: Path = KUBERNETES) -> dict[str, Any]:
    (found,) = [
        one
        for one in manifests(folder)
        if (one["kind"], one["metadata"]["name"]) == (kind, name)
    ]
    return found


def on_a_volume() -> dict[str, Any]:
    """The Deployment after the JSON patches of kubernetes-on-a-volume."""
    (kustomization,) = documents(ON_A_VOLUME / "kustomization.yaml")
    assert (ON_A_VOLUME / kustomization["resources"][0]).resolve() == KUBERNETES
    deployment = copy.deepcopy(named("Deployment"))
    (patch,) = kustomization["patches"]
    for step in yaml.safe_load(patch["patch"]):
        *above, last = (
            int(key) if key.isdigit() else key
            for key in step["path"].strip("/").split("/")
        )
        place: Any = deployment
        for key in above:
            place = place[key]
        if step["op"] == "add":
            assert last == "-", "only lists get longer"
            place.append(step["value"])
        elif step["op"] == "remove":
            del place[last]
        else:
            assert place[last] is not None, "only what exists is replaced"
            place[last] = step["value"]
    return deployment


def test_kubernetes_accepts_every_manifest() -> None:
    validator = pytest.importorskip("kubernetes_validate")
    for one in [*manifests(), *manifests(ON_A_VOLUME), on_a_volume()]:
        validator.validate(one, "1.31", strict=True)


def test_names_and_labels_fit_together() -> None:
    for deployment in (one for one in manifests() if one["kind"] == "Deployment"):
        labels = deployment["spec"]["template"]["metadata"]["labels"]
        service = named("Service", deployment["metadata"]["name"])
        assert (
            deployment["spec"]["selector"]["matchLabels"]
            == service["spec"]["selector"]
            == labels
        )
        (container,) = deployment["spec"]["template"]["spec"]["containers"]
        assert service["spec"]["ports"][0]["targetPort"] in [
            port["name"] for port in container["ports"]
        ]
    scaled = named("HorizontalPodAutoscaler")["spec"]
    budget = named("PodDisruptionBudget")["spec"]
    assert scaled["scaleTargetRef"] == {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "name": "posrec",
    }
    assert budget["selector"] == named("Deployment")["spec"]["selector"]


@pytest.mark.parametrize(
    "deployment", [named("Deployment"), on_a_volume()], ids=["by URL", "on a volume"]
)
def test_the_deployment_is_what_the_server_needs(deployment: dict[str, Any]) -> None:
    pod = deployment["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    probes = {
        name: container[f"{name}Probe"]["httpGet"]["path"]
        for name in ("startup", "readiness", "liveness")
    }
    assert probes == {
        "startup": "/healthz",
        "readiness": "/readyz",
        "liveness": "/healthz",
    }
    waits = int(container["lifecycle"]["preStop"]["exec"]["command"][1])
    assert pod["terminationGracePeriodSeconds"] >= waits + 20, (
        "open requests are finished within 20 seconds"
    )
    mounts = {mount["name"]: mount for mount in container["volumeMounts"]}
    assert mounts["runs"]["readOnly"]
    assert container["args"][0].startswith(mounts["runs"]["mountPath"])
    assert {volume["name"] for volume in pod["volumes"]} == mounts.keys()
    environment = {one["name"]: one for one in container["env"]}
    # Kubernetes does not start a container whose secret is missing, unless it is optional.
    assert environment["POSREC_API_KEY"]["valueFrom"] == {
        "secretKeyRef": {"name": "posrec", "key": "api-key"}
    }
    host = re.match(
        r"redis://([^:/]+):6379/0$", environment["POSREC_SESSION_STORE"]["value"]
    )
    assert host is not None
    assert named("Service", host[1])["spec"]["ports"][0]["port"] == 6379


def test_the_nightly_training_writes_the_volume_that_is_served() -> None:
    night = named("CronJob", "posrec-nightly", ON_A_VOLUME)["spec"]["jobTemplate"][
        "spec"
    ]["template"]["spec"]
    (container,) = night["containers"]
    (served,) = on_a_volume()["spec"]["template"]["spec"]["containers"]
    assert container["image"] == served["image"]
    mounts = {mount["name"]: mount["mountPath"] for mount in container["volumeMounts"]}
    assert {volume["name"] for volume in night["volumes"]} == mounts.keys()
    assert (f"{mounts['runs']}/current", mounts["runs"]) == (served["args"][0], "/runs")
    claims = {
        one["metadata"]["name"]
        for one in manifests(ON_A_VOLUME)
        if one["kind"] == "PersistentVolumeClaim"
    }
    volumes = [*night["volumes"], *on_a_volume()["spec"]["template"]["spec"]["volumes"]]
    claimed = {
        volume["persistentVolumeClaim"]["claimName"]
        for volume in volumes
        if "persistentVolumeClaim" in volume
    }
    assert claimed - claims == {"shop-log"}  # which the shop has
    program, script = container["command"]
    assert (
        program,
        f" {script}\n" in (ROOT / "docs" / "Dockerfile").read_text(encoding="utf-8"),
    ) == ("python", True)
    options = module_at(ROOT / "examples" / "nightly" / "nightly.py").parse(
        container["args"]
    )
    assert (str(options.home), options.log) == (mounts["runs"], "/log/clicks-*.csv.gz")


def entry_point() -> list[str]:
    """What the image's arguments are added to."""
    lines = (ROOT / "docs" / "Dockerfile").read_text(encoding="utf-8")
    program, *arguments = json.loads(
        re.findall(r"^ENTRYPOINT (.*)$", lines, re.MULTILINE)[0]
    )
    assert (program, arguments[0]) == ("posrec", "serve")
    return arguments[1:]


def command_lines() -> dict[str, list[str]]:
    """The arguments of `posrec serve` in every example."""
    page = (
        (ROOT / "docs" / "deploying.md")
        .read_text(encoding="utf-8")
        .replace("\\\n", " ")
    )
    (compose,) = documents(COMPOSE / "compose.yaml")
    found = {"compose": compose["services"]["posrec-a"]["command"]}
    for name, deployment in (
        ("by URL", named("Deployment")),
        ("on a volume", on_a_volume()),
    ):
        found[name] = deployment["spec"]["template"]["spec"]["containers"][0]["args"]
    for line in re.findall(r"^docker run .*$", page, re.MULTILINE):
        found[line] = shlex.split(line.partition(" posrec ")[2])
    unit = (
        (ROOT / "docs" / "posrec@.service")
        .read_text(encoding="utf-8")
        .replace("\\\n", " ")
    )
    started = (
        re.findall(r"^ExecStart=\S+ serve (.*)$", unit, re.MULTILINE)[0]
        .replace("${PORT}", "8000")
        .replace("${HOST}", "shop.example")
    )
    return {
        **{name: [*entry_point(), *line] for name, line in found.items()},
        "systemd": shlex.split(started),
    }


@pytest.mark.parametrize("name", command_lines())
def test_the_command_line_of_every_example_is_accepted(name: str) -> None:
    command: Any = typer.main.get_command(app)
    parsed = (
        command.commands["serve"].make_context("serve", command_lines()[name]).params
    )
    assert len(parsed["run"]) == 1
    assert parsed["host"] == ("127.0.0.1" if name == "systemd" else "0.0.0.0")


def test_the_compose_file_names_what_nginx_sends_to() -> None:
    (compose,) = documents(COMPOSE / "compose.yaml")
    services = compose["services"]
    text = (COMPOSE / "nginx.conf").read_text(encoding="utf-8")
    sent_to = re.findall(r"server (posrec-\w+):8000 ", text)
    assert (
        sorted(sent_to)
        == sorted(name for name in services if name.startswith("posrec"))
        == ["posrec-a", "posrec-b"]
    )
    assert (
        re.search(r"listen (\d+);", text)[1]
        == services["nginx"]["ports"][0].split(":")[1]
    )  # type: ignore[index]
    for name in sent_to:
        environment = services[name]["environment"]
        assert environment["POSREC_SESSION_STORE"] == "redis://valkey:6379/0"
        assert environment["POSREC_API_KEY"].startswith("${POSREC_API_KEY:?"), (
            "compose stops if it is not set or empty"
        )
        assert services[name]["volumes"][0].endswith(":/runs:ro")
        assert (
            COMPOSE
            / services[name]["build"]["context"]
            / services[name]["build"]["dockerfile"]
        ).is_file()
    assert "valkey" in services
