"""Run parameters: arms, models, workloads and profiles, read from ``params/*.yaml``.

One thing, one file; the file's name is its id; an unknown key is an error.
"""

from kvtop_lib.params.arm import Arm, Draft
from kvtop_lib.params.load import (
    list_names,
    load_arm,
    load_model,
    load_profile,
    load_workload,
    params_path,
)
from kvtop_lib.params.model import Model, Mtp
from kvtop_lib.params.profile import Profile
from kvtop_lib.params.workload import Workload

__all__ = [
    "Arm",
    "Draft",
    "Model",
    "Mtp",
    "Profile",
    "Workload",
    "list_names",
    "load_arm",
    "load_model",
    "load_profile",
    "load_workload",
    "params_path",
]
