"""A served model whose scores are log probabilities: answers over HTTP are those of the Recommender."""

from pathlib import Path

import pytest

from posrec.recommend.recommender import Recommender
from tests.server.server_process import Server, serving

pytest.importorskip("uvicorn")


def test_recommendations_explanations_and_the_run(trained_plus: Path) -> None:
    rec = Recommender.load(trained_plus, "cpu")
    with serving(trained_plus) as server:
        assert server.ask("GET", "/v1/run").json()["log_probabilities"] is True
        found = server.recommend("i3", "i4", "i3", k=5).json()["items"]
        expected = rec.recommend(["i3", "i4", "i3"], 5)
        assert [one["item"] for one in found] == [one.item for one in expected]
        assert [one["score"] for one in found] == pytest.approx([one.score for one in expected], abs=1e-3)
        answer = server.ask("POST", "/v1/explain", {"session": ["i3", "i4"], "item": "i3"}).json()
        why = rec.explain(["i3", "i4"], "i3")
        assert (answer["probability"], answer["repeat_chance"]) == pytest.approx((why.probability, why.repeat_chance))
        assert [part["name"] for part in answer["parts"]][3:] == ["trend", "clicked before", "normalisation"]
        assert sum(part["value"] for part in answer["parts"]) == pytest.approx(answer["score"], abs=1e-4)
        shares = [click["reads"]["clicked before"] for click in answer["clicks"]]
        assert shares == pytest.approx([click.attention["clicked before"] for click in why.clicks])


def test_other_models_have_no_probabilities(plain_server: Server) -> None:
    assert plain_server.ask("GET", "/v1/run").json()["log_probabilities"] is False
    answer = plain_server.ask("POST", "/v1/explain", {"session": ["i3", "i4"], "item": "i3"}).json()
    assert (answer["probability"], answer["repeat_chance"]) == (None, None)
