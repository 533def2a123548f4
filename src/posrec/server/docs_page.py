"""/docs: a page made from the OpenAPI document, with requests to try. It loads nothing from other servers."""

import json
from collections.abc import Sequence
from html import escape
from typing import Any
from urllib.parse import quote

STYLE = (
    ":root{color-scheme:light dark}"
    "body{font:16px/1.5 system-ui,sans-serif;max-width:50rem;margin:2rem auto;padding:0 1rem}"
    "code,pre,textarea,input{font:14px/1.45 ui-monospace,monospace}pre{padding:.75rem;overflow:auto;"
    "border:1px solid #8886;border-radius:6px;white-space:pre-wrap;overflow-wrap:anywhere}"
    "summary{cursor:pointer;padding:.35rem 0}table{border-collapse:collapse}"
    "td,th{text-align:left;padding:.15rem 1rem .15rem 0;vertical-align:top}"
    "textarea{width:100%;box-sizing:border-box}form pre:empty{display:none}"
)
# Opens the section that a link names, and sends the requests of the forms. The key is not kept.
SCRIPT = """
const reveal = () => {
  const named = document.getElementById(decodeURIComponent(location.hash.slice(1)));
  if (named) named.open = true;
};
addEventListener("hashchange", reveal);
reveal();
for (const form of document.querySelectorAll("form[data-method]")) form.addEventListener("submit", async (event) => {
  event.preventDefault();
  const key = document.getElementById("key").value, answer = form.querySelector("pre");
  const body = form.elements.body?.value, json = { "Content-Type": "application/json" };
  const headers = { ...(key && { "X-API-Key": key }), ...(body !== undefined && json) };
  try {
    const response = await fetch(form.elements.path.value.slice(1), { method: form.dataset.method, headers, body });
    const text = await response.text();
    let shown = text;
    try { shown = JSON.stringify(JSON.parse(text), null, 2); } catch { /* not JSON: shown as it is */ }
    answer.textContent = `${response.status}\\n${shown}`;
  } catch { answer.textContent = "The server can't be reached."; }
});
"""


def docs_page(schema: dict[str, Any], items: Sequence[str] = ("sku-1", "sku-7")) -> str:
    """`items`: the ids of two items, for the examples."""
    about = schema["info"]
    tried = examples(*items[:2])
    operations = [
        operation(path, method, one, tried.get((method, path)))
        for path, methods in schema["paths"].items() for method, one in methods.items() if isinstance(one, dict)
    ]  # fmt: skip
    schemas = [
        f"<details id='{escape(name)}'><summary><code>{escape(name)}</code></summary>"
        f"<pre>{escape(json.dumps(one, indent=2))}</pre></details>"
        for name, one in schema.get("components", {}).get("schemas", {}).items()
    ]
    return (
        "<!doctype html><html lang='en'><meta charset='utf-8'>"
        "<meta name='viewport' content='width=device-width, initial-scale=1'><link rel='icon' href='data:,'>"
        f"<title>{escape(about['title'])} API</title><style>{STYLE}</style>"
        f"<h1>{escape(about['title'])} {escape(about['version'])}</h1>"
        "<p>Also available as an <a href='openapi/openapi.json'>OpenAPI document</a>. Errors are answered as "
        "<code>{&quot;error&quot;: &quot;one plain sentence&quot;}</code>. The <a href='./'>playground</a> shows "
        "recommendations and why.</p>"
        "<form onsubmit='return false'><label>API key, if the server asks for one: "
        "<input id='key' type='password' autocomplete='off'></label></form>"
        f"<h2>Requests</h2>{''.join(operations)}<h2>Bodies</h2>{''.join(schemas)}<script>{SCRIPT}</script></html>"
    )


def examples(first: str, second: str) -> dict[tuple[str, str], tuple[str, Any]]:
    """(method, path of the OpenAPI document) -> an address to try, and the body."""
    return {
        ("post", "/v1/recommend"): ("/v1/recommend", {"session": [first, second], "k": 5}),
        ("post", "/v1/recommend/batch"): ("/v1/recommend/batch", {"sessions": [[first], [second], []], "k": 2}),
        ("post", "/v1/explain"): ("/v1/explain", {"session": [first], "item": second}),
        ("post", "/v1/feedback"): (
            "/v1/feedback", {"answer": "the id of an answer", "event": "shown", "items": [first, second]}
        ),
        ("post", "/v1/sessions/{session_id}/click"): ("/v1/sessions/anna/click", {"item": first, "k": 5}),
        ("get", "/v1/similar/{item}"): (f"/v1/similar/{quote(first, safe='')}?k=5", None),
        ("get", "/v1/items"): ("/v1/items?limit=5", None),
        ("get", "/v1/run"): ("/v1/run", None),
    }  # fmt: skip


def operation(path: str, method: str, one: dict[str, Any], example: tuple[str, Any] | None) -> str:
    rows = [
        f"<tr><td>{escape(part['in'])}<td><code>{escape(part['name'])}</code>"
        f"<td><code>{escape(json.dumps(part.get('schema', {})))}</code>"
        for part in one.get("parameters", [])
    ]
    if body := one.get("requestBody"):
        rows.append(f"<tr><td>body<td><td>{reference(body)}")
    for status, answer in one.get("responses", {}).items():
        rows.append(f"<tr><td>{escape(status)}<td>{escape(answer.get('description', ''))}<td>{reference(answer)}")
    form = try_form(method, *example) if example is not None else ""
    return (
        f"<details open><summary><code><b>{method.upper()}</b> {escape(path)}</code> "
        f"{escape(one.get('summary', ''))}</summary><table>{''.join(rows)}</table>{form}</details>"
    )


def try_form(method: str, address: str, body: Any) -> str:
    """An example request that can be changed and sent."""
    label = f"{method.upper()} {address}"
    written = ""
    if body is not None:
        text = escape(json.dumps(body, ensure_ascii=False))
        written = f"<textarea name='body' rows='2' aria-label='The body of {escape(label)}'>{text}</textarea>"
    return (
        f"<form data-method='{method.upper()}'><input type='hidden' name='path' value='{escape(address)}'>"
        f"<p><b>Example</b> <code>{escape(label)}</code> <button>Send</button></p>{written}<pre></pre></form>"
    )


def reference(holder: dict[str, Any]) -> str:
    """A link to the schema of a body."""
    for content in holder.get("content", {}).values():
        name = str(content.get("schema", {}).get("$ref", "")).rpartition("/")[2]
        if name:
            return f"<a href='#{escape(name)}'><code>{escape(name)}</code></a>"
    return ""
