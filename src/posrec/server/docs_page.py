"""/docs: a page made from the OpenAPI document. It loads nothing from other servers."""

import json
from html import escape
from typing import Any

STYLE = (
    ":root{color-scheme:light dark}"
    "body{font:16px/1.5 system-ui,sans-serif;max-width:50rem;margin:2rem auto;padding:0 1rem}"
    "code,pre{font:14px/1.45 ui-monospace,monospace}pre{padding:.75rem;overflow:auto;border:1px solid #8886;"
    "border-radius:6px}summary{cursor:pointer;padding:.35rem 0}table{border-collapse:collapse}"
    "td,th{text-align:left;padding:.15rem 1rem .15rem 0;vertical-align:top}"
)


def docs_page(schema: dict[str, Any]) -> str:
    about = schema["info"]
    operations = [
        operation(path, method, one) for path, methods in schema["paths"].items() for method, one in methods.items()
        if isinstance(one, dict)
    ]  # fmt: skip
    schemas = [
        f"<details id='{escape(name)}'><summary><code>{escape(name)}</code></summary>"
        f"<pre>{escape(json.dumps(one, indent=2))}</pre></details>"
        for name, one in schema.get("components", {}).get("schemas", {}).items()
    ]
    return (
        "<!doctype html><html lang='en'><meta charset='utf-8'>"
        "<meta name='viewport' content='width=device-width, initial-scale=1'>"
        f"<title>{escape(about['title'])} API</title><style>{STYLE}</style>"
        f"<h1>{escape(about['title'])} {escape(about['version'])}</h1>"
        "<p>Also available as an <a href='/openapi/openapi.json'>OpenAPI document</a>. Errors are answered as "
        '<code>{"error": "one plain sentence"}</code>.</p>'
        f"<h2>Requests</h2>{''.join(operations)}<h2>Bodies</h2>{''.join(schemas)}</html>"
    )


def operation(path: str, method: str, one: dict[str, Any]) -> str:
    rows = [
        f"<tr><td>{escape(part['in'])}<td><code>{escape(part['name'])}</code>"
        f"<td><code>{escape(json.dumps(part.get('schema', {})))}</code>"
        for part in one.get("parameters", [])
    ]
    if body := one.get("requestBody"):
        rows.append(f"<tr><td>body<td><td>{reference(body)}")
    for status, answer in one.get("responses", {}).items():
        rows.append(f"<tr><td>{escape(status)}<td>{escape(answer.get('description', ''))}<td>{reference(answer)}")
    return (
        f"<details open><summary><code><b>{method.upper()}</b> {escape(path)}</code> "
        f"{escape(one.get('summary', ''))}</summary><table>{''.join(rows)}</table></details>"
    )


def reference(holder: dict[str, Any]) -> str:
    """A link to the schema of a body."""
    for content in holder.get("content", {}).values():
        name = str(content.get("schema", {}).get("$ref", "")).rpartition("/")[2]
        if name:
            return f"<a href='#{escape(name)}'><code>{escape(name)}</code></a>"
    return ""
