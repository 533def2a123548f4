"""What MkDocs calls while it builds the site: generated pages, and links to files outside docs/.

index.md is README.md and architecture.md is ARCHITECTURE.md, so that each is written once. The
pages of the reference are generated from the code by `reference.py`. A link that leaves docs/ leads
to the repository, and has to name a file that exists.
"""

import re
import sys
from pathlib import Path
from typing import Any

from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
OUTSIDE = {"index.md": "README.md", "architecture.md": "ARCHITECTURE.md"}
LINK = re.compile(r"(\]\()([^)\s#]+)([^)]*\))")


def on_files(files: Files, config: Any) -> Files:
    sys.path.insert(0, str(HERE))
    import reference

    pages = {
        name: (ROOT / source).read_text(encoding="utf-8")
        for name, source in OUTSIDE.items()
    }
    for name, content in {**pages, **reference.pages()}.items():
        files.append(File.generated(config, name, content=content))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Files) -> str:
    """Links of README.md and ARCHITECTURE.md start at the root, links of other pages in docs/."""
    path = page.file.src_uri
    folder = ROOT if path in OUTSIDE else (ROOT / "docs" / path).parent

    def rewritten(match: re.Match[str]) -> str:
        begin, target, end = match.groups()
        if re.match(r"[a-z]+:|/", target):
            return match[0]
        named = (folder / target).resolve()
        if not named.exists() and files.get_file_from_path(target) is None:
            raise PluginError(f"{path}: the link {target} leads nowhere")
        docs = ROOT / "docs"
        if named.is_relative_to(docs):
            in_docs = named.relative_to(docs).as_posix()
            file: Any = files.get_file_from_path(in_docs)
            if file is not None and file.inclusion.is_included():
                to_docs = "../" * path.count("/")
                return f"{begin}{to_docs}{in_docs}{end}"
        if named.is_relative_to(ROOT) and named.exists():
            in_repository = named.relative_to(ROOT).as_posix()
            return f"{begin}{config.repo_url}/blob/main/{in_repository}{end}"
        return match[0]

    return LINK.sub(rewritten, markdown)
