"""The stand-in ``sgl_kernel`` under a private name, and random draft trees to feed it."""

import importlib.util
import random
import sys
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

CPU_SITE = Path(__file__).parents[2] / "kvtop_lib" / "sglang_plugin" / "cpu_site"


def load() -> ModuleType:
    """Import the package without putting ``sgl_kernel`` in the way of a real one."""
    name = "kvtop_stand_in_sgl_kernel"
    if name not in sys.modules:
        folder = CPU_SITE / "sgl_kernel"
        spec = importlib.util.spec_from_file_location(
            name, folder / "__init__.py", submodule_search_locations=[str(folder)]
        )
        sys.modules[name] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(sys.modules[name])
        importlib.import_module(f"{name}.speculative")
    return sys.modules[name]


@dataclass(frozen=True)
class EagleTree:
    """What an EAGLE draft hands over for one request, and the parents that it means."""

    parent_list: list[int]  # candidate that expanded each group; [] for one step
    selected: list[int]  # chosen candidates, ascending
    parent: list[int]  # of every node, -1 for the root


def random_eagle_tree(rng: random.Random, topk: int, steps: int, nodes: int) -> EagleTree:
    """Draft ``steps`` times, ``topk`` wide, and keep the best ``nodes - 1`` candidates."""
    score, parent_of = {}, {}
    frontier = list(range(topk))
    for c in frontier:
        score[c], parent_of[c] = rng.random(), None
    expanded = [[-1, *frontier]]
    for step in range(1, steps):
        base = topk + topk * topk * (step - 1)
        children = []
        for place, parent in enumerate(frontier):
            for t in range(topk):
                c = base + place * topk + t
                score[c], parent_of[c] = score[parent] * rng.random(), parent
                children.append(c)
        frontier = sorted(children, key=lambda c: -score[c])[:topk]
        expanded.append(frontier)
    selected = sorted(sorted(score, key=lambda c: -score[c])[: nodes - 1])
    node_of = {c: i + 1 for i, c in enumerate(selected)} | {None: 0}
    parent_list = [c for group in expanded[:-1] for c in group] if steps > 1 else []
    return EagleTree(parent_list, selected, [-1] + [node_of[parent_of[c]] for c in selected])


def random_parents(rng: random.Random, nodes: int, chain: bool) -> list[int]:
    """Parent of every node of a chain, or of a random tree."""
    return [-1] + [i - 1 if chain else rng.randrange(i) for i in range(1, nodes)]


def path_to_root(parent: list[int], node: int) -> list[int]:
    """The proper ancestors of ``node``, nearest first, the root last."""
    path = []
    while parent[node] >= 0:
        node = parent[node]
        path.append(node)
    return path


def slow_links(parent: list[int]) -> tuple[list[int], list[int]]:
    """First child and next sibling of every node, -1 where there is none."""
    nodes = range(len(parent))
    child = [next((k for k in nodes if parent[k] == i), -1) for i in nodes]
    sibling = [next((k for k in nodes if k > i and parent[k] == parent[i] >= 0), -1) for i in nodes]
    return child, sibling
