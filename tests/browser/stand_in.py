"""A small server for the playground's own tests: the same requests and answers as `posrec serve`, one at a time.

    python -m tests.browser.stand_in RUN [PORT] [API_KEY]

Everything it says comes from a real run; only the queue, the batches and the limits of the server are left out.
"""

import json
import sys
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.resources import files
from typing import Any
from urllib.parse import parse_qs, urlsplit

from posrec.errors import InputError
from posrec.serving.answers import ClickEffect
from posrec.serving.recommender import Recommender


class Shop:
    """The answers, as JSON can hold them."""

    def __init__(self, run: str) -> None:
        self.recommender = Recommender.load(run, "cpu")
        self.popularity = self.recommender.popularity.tolist()

    def recommend(self, asked: dict[str, Any]) -> dict[str, Any]:
        excluded = asked.get("exclude_seen", False)
        return self.recommender.recommend(asked["session"], asked.get("k"), exclude_seen=excluded).as_json()

    def explain(self, asked: dict[str, Any]) -> dict[str, Any]:
        why = self.recommender.explain(asked["session"], asked["item"])
        known = [place for place, item in enumerate(asked["session"]) if item not in why.unknown]
        places = known[-len(why.clicks) :]
        return {
            "item": why.item,
            "title": why.title,
            "score": why.score,
            "rank": why.rank,
            "parts": [{"name": name, "value": value} for name, value in why.parts.items()],
            "clicks": [click_json(*pair) for pair in zip(why.clicks, places, strict=True)],
            "unknown": why.unknown,
        }

    def items(self, query: str, limit: int) -> dict[str, Any]:
        """Those that hold the query in their id or title, the most clicked first."""
        rec, wanted = self.recommender, query.casefold()
        found = []
        for number in sorted(range(1, rec.items + 1), key=lambda number: -self.popularity[number - 1]):
            item, title = rec.vocabulary.item(number), rec.title(number)
            if wanted in item.casefold() or wanted in (title or "").casefold():
                found.append({"item": item, "title": title, "clicks": int(self.popularity[number - 1])})
        return {"items": found[:limit]}

    def run(self) -> dict[str, Any]:
        run = self.recommender.run
        return {
            "model": run.config["model"],
            "items": self.recommender.items,
            "max_length": self.recommender.model.config.max_length,
            "metrics": run.metrics,
            "trained": run.config["training"],
        }


def click_json(click: ClickEffect, position: int) -> dict[str, Any]:
    weights = list(click.attention.values())
    return {
        "item": click.item,
        "title": click.title,
        "position": position,
        "attention": sum(weights) / len(weights) if weights else None,
        "reads": click.attention,
        "left_out": click.effect,
        "rank_without": click.rank_without,
    }


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def __init__(self, shop: Shop, api_key: str | None, *arguments: Any) -> None:
        self.shop, self.api_key = shop, api_key
        super().__init__(*arguments)

    def do_GET(self) -> None:
        place = urlsplit(self.path)
        if place.path == "/":
            page = files("posrec.serving").joinpath("page", "index.html").read_bytes()
            return self.reply(200, page, "text/html; charset=utf-8")
        query = {name: values[0] for name, values in parse_qs(place.query).items()}
        return self.answer({
            "/v1/run": self.shop.run,
            "/v1/items": lambda: self.shop.items(query.get("query", ""), int(query.get("limit", 20))),
        }.get(place.path))  # fmt: skip

    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        verbs = {"/v1/recommend": self.shop.recommend, "/v1/explain": self.shop.explain}
        verb = verbs.get(self.path)
        self.answer(verb and partial(verb, asked))

    def answer(self, make: Any) -> None:
        if make is None:
            return self.reply_json(404, {"error": f"nothing is at {self.path}"})
        if self.api_key and self.headers["Authorization"] != f"Bearer {self.api_key}":
            return self.reply_json(401, {"error": "this server asks for an API key"})
        try:
            return self.reply_json(200, make())
        except InputError as error:
            return self.reply_json(422, {"error": str(error)})

    def reply_json(self, status: int, content: dict[str, Any]) -> None:
        self.reply(status, json.dumps(content).encode(), "application/json")

    def reply(self, status: int, body: bytes, kind: str) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *arguments: object) -> None:
        """Quiet."""


def serve(run: str, port: str = "0", api_key: str | None = None) -> None:
    server = ThreadingHTTPServer(("127.0.0.1", int(port)), partial(Handler, Shop(run), api_key))
    print(f"http://127.0.0.1:{server.server_port}/", flush=True)
    server.serve_forever()


if __name__ == "__main__":
    serve(*sys.argv[1:])
