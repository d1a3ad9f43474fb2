"""The values that pass between the layers: requests, plans and reports. Standard library only.

Sizes are bytes, times are seconds, row counts are rows; nothing here is formatted for a reader.
"""

from __future__ import annotations

from uc_stage.model.copies import (
    DEFAULT_CACHE_DIR,
    CachedCopy,
    CachePlan,
    CacheReport,
    CacheRequest,
    CopiesReport,
    CopyFile,
    CopyForm,
    CopyState,
    Holder,
    Kept,
    PrunePlan,
    PruneReport,
    PruneRequest,
)
from uc_stage.model.exports import (
    DEFAULT_COMPRESSION,
    DEFAULT_MEMORY,
    DEFAULT_ROW_GROUP_BYTES,
    Compression,
    EngineName,
    ExportFile,
    ExportPlan,
    ExportReport,
    ExportRequest,
    Layout,
    Loader,
    PlannedSplit,
    Snapshot,
    Source,
)
from uc_stage.model.inspecting import InspectReport, InspectRequest, Packed, Problem, Spread, TargetKind
from uc_stage.model.measuring import BenchReport, BenchRequest, Measurement, Requirement
from uc_stage.model.tables import Field, TableRef, read_timestamp

__all__ = [
    "DEFAULT_CACHE_DIR",
    "DEFAULT_COMPRESSION",
    "DEFAULT_MEMORY",
    "DEFAULT_ROW_GROUP_BYTES",
    "BenchReport",
    "BenchRequest",
    "CachePlan",
    "CacheReport",
    "CacheRequest",
    "CachedCopy",
    "Compression",
    "CopiesReport",
    "CopyFile",
    "CopyForm",
    "CopyState",
    "EngineName",
    "ExportFile",
    "ExportPlan",
    "ExportReport",
    "ExportRequest",
    "Field",
    "Holder",
    "InspectReport",
    "InspectRequest",
    "Kept",
    "Layout",
    "Loader",
    "Measurement",
    "Packed",
    "PlannedSplit",
    "Problem",
    "PrunePlan",
    "PruneReport",
    "PruneRequest",
    "Requirement",
    "Snapshot",
    "Source",
    "Spread",
    "TableRef",
    "TargetKind",
    "read_timestamp",
]
