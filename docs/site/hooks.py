"""Hooks of mkdocs, for parts of the site that are no files of docs/; ``mkdocs.yml`` names this file.

- README.md is the front page, and docs/index.md the page behind it (pages.md).
- Links between files of the repository become links of the site. Files outside docs/ that are linked to become pages.
- The pages of the API and of the command line are made from what is there: ``grace.__all__``, and the commands.
"""

from __future__ import annotations

import ast
import functools
import importlib
import os
import re
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files, InclusionLevel
from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
SPECIAL = {ROOT / "README.md": "index.md", DOCS / "index.md": "pages.md"}
ROOMS = ("memories", "communicators", "methods")
TOOLKITS = (
    "tensorflow",
    "keras",
    "jax",
    "horovod",
    "lightning",
    "transformers",
    "optim",
)  # pages of their own, where the package is there
GROUPS = {  # of what `import grace` offers; what is in none of them is under "Everything else"
    "training": (
        "Training",
        ["attach", "Auto", "Handle", "local", "outer", "OuterLoop", "LocalSteps", "gossip", "decoupled",
         "DistributedOptimizer", "momentum_in_memory",
         "broadcast_parameters",
         "broadcast_optimizer_state", "broadcast_object", "init_process_group", "transport"],
    ),
    "choosing": (
        "Methods and policies",
        ["method", "methods", "spell", "layers", "Policy", "Rule", "Schedule", "Simulator", "Traffic"],
    ),
    "writing": (
        "Writing a method",
        ["Compressor", "Method", "Conversation", "Exchanged", "Facts", "Needs", "Peer", "Lent", "Loan", "register",
         "register_memory", "register_communicator", "register_transport", "register_door", "pack",
         "unpack", "quantize", "dequantize", "sparsify", "desparsify"],
    ),
    "errors": (
        "Errors", ["GraceError", "GraceWarning", "OptimizerWarning", "UncompressedWarning", "UnexchangedWarning",
                   "DivergenceWarning"],
    ),
}  # fmt: skip
ARCHIVE = "survey/report.html"  # made of the archive, when the site is built
ARCHIVE_LINK = f"\n\n[All runs of the archive on one interactive page](../{ARCHIVE}).\n\n## "
LINK = re.compile(r"(?<=\]\()(?!https?:|mailto:)([^)\s#]*)(#[^)\s]*)?(?=\))")
PICTURE = re.compile(r"""((?:src|srcset)=["'])docs/""")  # of README, in HTML: light and dark
FENCE = re.compile(r"(^ *```.*?^ *```$)", flags=re.MULTILINE | re.DOTALL)


# ---- hooks of mkdocs ------------------------------------------------------------------------------------------------
def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """The pages that are made take their places in the navigation."""
    reference = next(section["Reference"] for section in config.nav or [] if "Reference" in section)
    methods = sorted(page.name for page in (DOCS / "methods").glob("*.md") if page.name != "index.md")
    for section in reference:
        if isinstance(section, dict) and "Methods" in section:
            section["Methods"] = [
                "methods/index.md",
                *({name.removesuffix(".md"): f"methods/{name}"} for name in methods),
            ]
        if isinstance(section, dict) and "API" in section:
            section["API"] = [{title: uri} for uri, (title, _) in api_pages().items()]
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Adds the pages that are no files of docs/."""
    index = files.get_file_from_path("index.md")
    assert index is not None
    files.remove(index)
    for path, uri in SPECIAL.items():
        _add(files, config, uri, path.read_text(encoding="utf-8"))
    for uri, (title, text) in api_pages().items():
        _add(files, config, uri, f"# {title}\n\n{text}")
    _add(files, config, "reference/commands.md", commands())
    files.append(File.generated(config, ARCHIVE, content=archive_page()))
    for path in sorted({target for page in sources(files) for target in outside(page)}):
        _add(files, config, as_page(path), _listing(path), listed=False)
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Links between files of the repository become links between pages."""
    path = source(page.file.src_uri)
    text = markdown if path is None else translate(markdown, path, page.file.src_uri)
    return text.replace("\n\n## ", ARCHIVE_LINK, 1) if page.file.src_uri == "data/survey-findings.md" else text


# ---- links ----------------------------------------------------------------------------------------------------------
def source(uri: str) -> Path | None:
    """The file of the repository that a page was read from; None for one that was made."""
    for path, special in SPECIAL.items():
        if uri == special:
            return path
    return DOCS / uri if (DOCS / uri).is_file() else None


def sources(files: Files) -> list[Path]:
    """The files of all pages that were read."""
    paths = (source(file.src_uri) for file in files if file.src_uri.endswith(".md"))
    return [path for path in paths if path is not None]


def outside(path: Path) -> list[Path]:
    """The files outside docs/ that a page links to."""
    targets = [
        _target(path, link[1]) for part in _prose(path.read_text(encoding="utf-8")) for link in LINK.finditer(part)
    ]
    return [target for target in targets if not _in_site(target)]


def translate(text: str, path: Path, uri: str) -> str:
    """The links of ``path`` as those of the page ``uri``."""

    def site(link: re.Match[str]) -> str:
        if not link[1]:
            return link[0]
        target = _target(path, link[1])
        if target in SPECIAL:
            to = SPECIAL[target]
        elif _in_site(target):
            to = target.relative_to(DOCS).as_posix()
        else:
            to = as_page(target)
        return os.path.relpath(to, os.path.dirname(uri) or ".") + (link[2] or "")

    if path == ROOT / "README.md":
        text = PICTURE.sub(r"\1", text)
    return "".join(part if part.lstrip().startswith("```") else LINK.sub(site, part) for part in FENCE.split(text))


def as_page(path: Path) -> str:
    """Address in the site of a file from outside docs/."""
    name = path.relative_to(ROOT).as_posix()
    return f"files/{name}" if name.endswith(".md") else f"files/{name}.md"


def _in_site(path: Path) -> bool:
    return path in SPECIAL or (path.is_relative_to(DOCS) and path.suffix != ".py")


def _target(path: Path, link: str) -> Path:
    return Path(os.path.normpath(path.parent / link))


def _prose(text: str) -> list[str]:
    return [part for part in FENCE.split(text) if not part.lstrip().startswith("```")]


def _listing(path: Path) -> str:
    name = path.relative_to(ROOT).as_posix()
    head = f"---\ntitle: {path.name}\nsearch:\n  exclude: true\n---\n"
    if path.is_dir():
        return f"{head}\n# `{name}/`\n\nA folder of the repository.\n"
    language = {".py": "python", ".md": "markdown", ".cc": "cpp", ".h": "cpp"}.get(path.suffix, "text")
    return f"{head}\n# `{name}`\n\n````{language}\n{path.read_text(encoding='utf-8')}````\n"


def _add(files: Files, config: MkDocsConfig, uri: str, text: str, *, listed: bool = True) -> None:
    file = File.generated(config, uri, content=text)
    if not listed:
        file.inclusion = InclusionLevel.NOT_IN_NAV
    files.append(file)


# ---- pages that are made --------------------------------------------------------------------------------------------
@functools.cache
def archive_page() -> str:
    """The interactive page of the survey's archive."""
    from grace_bench.report.archive import archive_document
    from grace_bench.report.write import page
    from grace_bench.survey.archive import read_archive
    from grace_bench.survey.steps import read_steps

    folder = DOCS / "survey"
    rows = read_archive(folder / "archive.parquet")
    return page(archive_document(rows, "archive.parquet", read_steps(folder / "steps.json")))


@functools.cache
def api_pages() -> dict[str, tuple[str, str]]:
    """Title and text of each page of the API, by its place."""
    import grace

    memories, communicators, methods = (importlib.import_module(f"grace.{room}") for room in ROOMS)
    places: dict[str, Any] = {name: getattr(grace, name) for name in grace.__all__}
    places["methods"] = grace.registry.methods  # what a call of the package gives
    pages, used = {}, set(methods.__all__)
    groups = dict(GROUPS)
    groups["around"] = ("Memories and communicators", [*memories.__all__, *communicators.__all__])
    used |= {name for _, names in groups.values() for name in names}
    if rest := [name for name in grace.__all__ if name not in used]:
        groups["else"] = ("Everything else", rest)
    for key, (title, names) in groups.items():
        text = "Everything here is in `grace`: `grace." + names[0] + "`.\n\n"
        for name in names:
            target = places[name]
            text += f"::: {target.__module__}.{getattr(target, '__qualname__', name)}\n\n"
        if key == "errors":
            text += "::: grace.errors\n    options:\n      show_root_heading: false\n      filters: ['Error$', 'Mismatch$']\n"
        pages[f"reference/api/{key}.md"] = (title, text)
    for name in TOOLKITS:
        if (ROOT / "src/grace" / name).is_dir() or (ROOT / f"src/grace/{name}.py").is_file():
            pages[f"reference/api/{name}.md"] = (f"grace.{name}", _package(f"grace.{name}"))
    return pages


def _package(name: str) -> str:
    """The public names of a package (``__all__``), read without importing it: its toolkit may be missing."""
    path = ROOT / "src" / name.replace(".", "/")
    tree = ast.parse((path / "__init__.py" if path.is_dir() else path.with_suffix(".py")).read_text(encoding="utf-8"))
    homes, offered = {}, []
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            homes |= {alias.asname or alias.name: f"{node.module}.{alias.name}" for alias in node.names}
        elif isinstance(node, ast.ClassDef | ast.FunctionDef):
            homes.setdefault(node.name, f"{name}.{node.name}")
        elif isinstance(node, ast.Assign) and [getattr(target, "id", "") for target in node.targets] == ["__all__"]:
            offered = ast.literal_eval(node.value)
    blocks = [f"::: {name}\n    options:\n      members: []\n      show_root_heading: false\n"]
    blocks += [f"::: {homes[member]}\n" for member in offered if homes.get(member, "").startswith("grace")]
    return "\n".join(blocks)


def commands() -> str:
    """The line of ``grace --help`` on each command."""
    import typer
    from typer.cli import get_docs_for_click

    from grace.cli.app import app

    command = typer.main.get_command(app)
    context = typer.Context(command, info_name="grace")
    return get_docs_for_click(obj=command, ctx=context, name="grace", title="Command line")
