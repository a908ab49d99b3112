"""``python -m kvtop_lib.metrics``: write ``docs/metrics.md`` from the table of metrics."""

from kvtop_lib.metrics.table import markdown
from kvtop_lib.paths import repo_root


def main() -> None:
    """Write the page."""
    page = repo_root() / "docs" / "metrics.md"
    page.parent.mkdir(exist_ok=True)
    page.write_text(markdown(), encoding="utf-8")
    print(f"wrote {page.name}")


if __name__ == "__main__":
    main()
