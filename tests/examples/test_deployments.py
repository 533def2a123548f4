"""examples/kubernetes and examples/compose: valid by Kubernetes' own schemas, and true to what the server does."""

import copy
import re
from pathlib import Path
from typing import Any

import pytest

from tests.helpers import ROOT

yaml = pytest.importorskip("yaml")
KUBERNETES, COMPOSE = ROOT / "examples" / "kubernetes", ROOT / "examples" / "compose"
ON_A_VOLUME = ROOT / "examples" / "kubernetes-on-a-volume"


def documents(path: Path) -> list[dict[str, Any]]:
    return list(yaml.safe_load_all(path.read_text(encoding="utf-8")))


def manifests() -> list[dict[str, Any]]:
    """Everything that the kustomization applies."""
    (kustomization,) = documents(KUBERNETES / "kustomization.yaml")
    assert sorted(kustomization["resources"]) == sorted(
        path.name for path in KUBERNETES.glob("*.yaml") if path.name != "kustomization.yaml"
    )
    return [one for name in kustomization["resources"] for one in documents(KUBERNETES / name)]


def named(kind: str, name: str = "posrec") -> dict[str, Any]:
    (found,) = [one for one in manifests() if (one["kind"], one["metadata"]["name"]) == (kind, name)]
    return found


def on_a_volume() -> dict[str, Any]:
    """The Deployment after the JSON patches of kubernetes-on-a-volume."""
    (kustomization,) = documents(ON_A_VOLUME / "kustomization.yaml")
    (base,) = kustomization["resources"]
    assert (ON_A_VOLUME / base).resolve() == KUBERNETES
    assert KUBERNETES not in ON_A_VOLUME.parents, "kustomize refuses a base that contains the overlay"
    deployment = copy.deepcopy(named("Deployment"))
    (patch,) = kustomization["patches"]
    for step in yaml.safe_load(patch["patch"]):
        *above, last = step["path"].strip("/").split("/")
        place: Any = deployment
        for key in above:
            place = place[int(key) if isinstance(place, list) else key]
        key = int(last) if isinstance(place, list) else last
        assert place[key] is not None, "only what exists is removed or replaced"
        if step["op"] == "remove":
            del place[key]
        else:
            place[key] = step["value"]
    return deployment


def test_kubernetes_accepts_every_manifest() -> None:
    validator = pytest.importorskip("kubernetes_validate")
    found = [*manifests(), on_a_volume()]
    assert sorted({one["kind"] for one in found}) == [
        "Deployment", "HorizontalPodAutoscaler", "PodDisruptionBudget", "Service"
    ]  # fmt: skip
    for one in found:
        validator.validate(one, "1.31", strict=True)
    wrong = copy.deepcopy(named("Deployment"))
    wrong["spec"]["template"]["spec"]["containers"][0]["readinessprobe"] = {}
    with pytest.raises(validator.ValidationError):
        validator.validate(wrong, "1.31", strict=True)


def test_names_and_labels_fit_together() -> None:
    for deployment in (one for one in manifests() if one["kind"] == "Deployment"):
        labels = deployment["spec"]["template"]["metadata"]["labels"]
        service = named("Service", deployment["metadata"]["name"])
        assert deployment["spec"]["selector"]["matchLabels"] == service["spec"]["selector"] == labels
        (container,) = deployment["spec"]["template"]["spec"]["containers"]
        assert service["spec"]["ports"][0]["targetPort"] in [port["name"] for port in container["ports"]]
    scaled, budget = named("HorizontalPodAutoscaler")["spec"], named("PodDisruptionBudget")["spec"]
    assert scaled["scaleTargetRef"] == {"apiVersion": "apps/v1", "kind": "Deployment", "name": "posrec"}
    assert scaled["minReplicas"] >= 2
    assert budget["selector"] == named("Deployment")["spec"]["selector"]


@pytest.mark.parametrize("deployment", [named("Deployment"), on_a_volume()], ids=["by URL", "on a volume"])
def test_the_deployment_is_what_the_server_needs(deployment: dict[str, Any]) -> None:
    pod = deployment["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    probes = {name: container[f"{name}Probe"]["httpGet"]["path"] for name in ("startup", "readiness", "liveness")}
    assert probes == {"startup": "/healthz", "readiness": "/readyz", "liveness": "/healthz"}
    waits = int(container["lifecycle"]["preStop"]["exec"]["command"][1])
    assert pod["terminationGracePeriodSeconds"] >= waits + 20, "open requests are finished within 20 seconds"
    mounts = {mount["name"]: mount for mount in container["volumeMounts"]}
    assert mounts["runs"]["readOnly"]
    assert container["args"][0].startswith(mounts["runs"]["mountPath"])
    assert {volume["name"] for volume in pod["volumes"]} == mounts.keys()
    store = {one["name"]: one.get("value") for one in container["env"]}["POSREC_SESSION_STORE"]
    host = re.match(r"redis://([^:/]+):6379/0$", store)
    assert host is not None
    assert named("Service", host[1])["spec"]["ports"][0]["port"] == 6379


def test_a_run_comes_by_url_or_from_a_volume() -> None:
    (fetch,) = named("Deployment")["spec"]["template"]["spec"]["initContainers"]
    assert [one["name"] for one in fetch["env"]] == ["RUN_URL"]
    pod = on_a_volume()["spec"]["template"]["spec"]
    assert "initContainers" not in pod
    (volume,) = [one for one in pod["volumes"] if one["name"] == "runs"]
    assert volume["persistentVolumeClaim"]["readOnly"]


def test_the_compose_file_names_what_nginx_sends_to() -> None:
    (compose,) = documents(COMPOSE / "compose.yaml")
    services = compose["services"]
    text = (COMPOSE / "nginx.conf").read_text(encoding="utf-8")
    sent_to = re.findall(r"server (posrec-\w+):8000 ", text)
    assert sorted(sent_to) == sorted(name for name in services if name.startswith("posrec")) == ["posrec-a", "posrec-b"]
    assert re.search(r"listen (\d+);", text)[1] == services["nginx"]["ports"][0].split(":")[1]  # type: ignore[index]
    for name in sent_to:
        assert services[name]["environment"]["POSREC_SESSION_STORE"] == "redis://valkey:6379/0"
        assert services[name]["volumes"][0].endswith(":/runs:ro")
        assert (COMPOSE / services[name]["build"]["context"] / services[name]["build"]["dockerfile"]).is_file()
    assert "valkey" in services
