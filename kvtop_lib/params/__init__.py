"""Run parameters: arms, models, workloads and profiles, read from ``params/*.yaml``.

One thing, one file; the file's name is its id; an unknown key is an error.
"""

from kvtop_lib.params.arm import Arm, Draft
from kvtop_lib.params.load import (
    list_names,
    load_arm,
    load_model,
    load_profile,
    load_published,
    load_workload,
    params_path,
    read_published,
)
from kvtop_lib.params.model import Model, Mtp
from kvtop_lib.params.profile import Profile
from kvtop_lib.params.published import Published
from kvtop_lib.params.shape import Load, OpenLoad, load_name, parse_load
from kvtop_lib.params.workload import FixedShape, Workload

__all__ = [
    "Arm",
    "Draft",
    "FixedShape",
    "Load",
    "Model",
    "Mtp",
    "OpenLoad",
    "Profile",
    "Published",
    "Workload",
    "list_names",
    "load_arm",
    "load_model",
    "load_name",
    "load_profile",
    "load_published",
    "load_workload",
    "params_path",
    "parse_load",
    "read_published",
]
