"""The rules: each has a stable id, a severity, why it is one, and the public reports that it rests on.

Ids are never given anew. Their hundreds tell the damage: 1 rows that are wrong in silence, 2 jobs that die or hang,
3 time that is lost, 4 what is as well to know. `docs/rules.md` is generated from here.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import TYPE_CHECKING

from uc_stage.errors import InvalidRequest
from uc_stage.inspection.advice import layout, machine, ranks, rows, types
from uc_stage.model import Advice
from uc_stage.parquet import is_parquet_name

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from uc_stage.inspection.facts import Facts, Finding
    from uc_stage.model import Problem, Severity

_SEVERITIES: tuple[Severity, ...] = ("wrong", "warn", "info")


@dataclass(frozen=True, slots=True)
class Rule:
    """One rule.

    Attributes:
        reports: `owner/repository#number` on GitHub.
        check: looks at the facts; None where `problems` are the codes of what the look at the files itself finds.
        fix: what mends those problems.
    """

    id: str
    severity: Severity
    title: str
    why: str
    reports: tuple[str, ...] = ()
    check: Callable[[Facts], Iterator[Finding]] | None = None
    problems: tuple[str, ...] = ()
    fix: str = ""


RULES = (
    Rule(
        "UCS101", "wrong", "Deleted rows that a glob brings back",
        "A Delta table's folder holds more than its rows: rows that deletion vectors hide, and the files of other "
        "versions. Whoever reads the folder as Parquet trains on them. Told from the log's own actions, since the "
        "table's property may have been turned off later.",
        ("delta-io/delta#1485", "trinodb/trino#30685", "ClickHouse/ClickHouse#115043", "ray-project/ray#66275",
         "Eventual-Inc/Daft#1954", "datahub-project/datahub#14083"),
        check=rows.deleted_rows,
    ),
    Rule(
        "UCS102", "wrong", "Columns renamed by mapping",
        "With column mapping a Delta table's files name the columns otherwise. A reader that goes by the table's "
        "names gives NULL in every row, and one that goes by the files' gives names such as `col-1f3a…`.",
        ("delta-io/delta-rs#930", "ray-project/ray#64854", "duckdb/duckdb-delta#50", "spiceai/spiceai#8657"),
        check=rows.renamed_columns,
    ),
    Rule(
        "UCS103", "wrong", "A Delta table within a folder",
        "A listing of the folder takes the table's files for data, deleted rows and older versions too.",
        ("delta-io/delta#1485",),
        problems=("table",), fix="inspect and export the table by itself, and keep it out of the folder",
    ),
    Rule(
        "UCS104", "wrong", "Files that are missing",
        "A copy or an export that was interrupted, or tidied up by hand, is shorter than its record tells; loaders "
        "that list the folder do not notice.",
        ("rclone/rclone#438", "rclone/rclone#6206", "webdataset/webdataset#503"),
        problems=("missing",), fix="run the `export` or `cache` that made it again: it writes what is missing",
    ),
    Rule(
        "UCS105", "wrong", "Files with other bytes or rows than recorded",
        "A file that was cut off, overwritten or damaged is not what was exported. Readers meet an error late in an "
        "epoch, or none.",
        ("rclone/rclone#4223", "fsspec/filesystem_spec#639"),
        problems=("truncated", "size_differs", "rows_differ", "changed"),
        fix="of a copy: uc-stage cache SOURCE --verify; of an export: uc-stage export TABLE DEST --force",
    ),
    Rule(
        "UCS106", "wrong", "Parquet files that are no part of it",
        "Loaders that list a folder read every Parquet file in it: rows of something else, or the same rows twice.",
        (),
        problems=("extra",), fix="move the files out of the folder",
    ),
    Rule(
        "UCS107", "wrong", "Files of an export that did not end",
        "They hold rows that the published files hold too, or will. Readers that follow the manifest never see them; "
        "a listing does.",
        ("rclone/rclone#438", "webdataset/webdataset#503"),
        problems=("stray",), fix="run the export again, which sweeps them; or remove them",
    ),
    Rule(
        "UCS108", "wrong", "Schemas that drift",
        "Files of one dataset with other columns or types: `datasets` ends with a CastError in the middle of the "
        "build, and other readers take the first file's schema, with NULL for what is missing in it.",
        ("huggingface/datasets#6039",),
        problems=("schema_differs",), fix="write the odd files anew with the schema of the others, or export the table",
    ),
    Rule(
        "UCS109", "wrong", "Partition columns that a loader drops",
        "In a partitioned table or folder the values of some columns are in the log, or in folders' names such as "
        "`day=2026-01-31`, and not in the files. `load_dataset` drops them without a word; others retype them. An "
        "export has them as columns.",
        ("astrolabsoftware/fink-client#157", "mbta/lamp#367", "delta-io/delta-rs#215"),
        check=rows.partition_columns,
    ),
    Rule(
        "UCS110", "wrong", "Names that begin with an underscore",
        "Spark and pyarrow take files and folders whose names begin with `_` for hidden, `datasets` and a glob do "
        "not: the same folder has other rows for each.",
        ("apache/arrow#7857", "apache/arrow#42160", "apache/arrow#44352", "apache/arrow#33845"),
        check=rows.underscored,
    ),
    Rule(
        "UCS111", "wrong", "A stale Hugging Face cache of the same path",
        "`datasets` keys its builds by path and time of modification. Content that changed under both, as it does "
        "where times are kept or rounded, gives the rows of the older build. The library itself is asked which "
        "builds it would take.",
        ("dask/dask-expr#800", "apache/spark#30483"),
        check=rows.old_builds,
    ),
    Rule(
        "UCS112", "warn", "A copy of an older generation",
        "The source was exported anew since. What trains on the copy trains on the data of then.",
        ("dask/dask-expr#800",),
        check=rows.old_copy,
    ),
    Rule(
        "UCS113", "warn", "Timestamps as INT96",
        "Readers take INT96, Spark's old form, for nanoseconds in 64 bits: times before 1678 and after 2262, such as "
        "9999-12-31 for `never`, wrap to others in silence.",
        ("apache/datafusion#1360", "lakehq/sail#427", "rapidsai/cudf#8070"),
        check=rows.int96,
    ),
    Rule(
        "UCS114", "warn", "Kept generations",
        "`export --keep` leaves the files of earlier generations for jobs that still read them. A listing reads all "
        "generations, the same rows several times.",
        (),
        check=rows.kept_generations,
    ),
    Rule(
        "UCS115", "info", "Timestamps in nanoseconds",
        "64 bits of nanoseconds hold the years 1678 to 2262. What lay outside when it was written may have wrapped "
        "then, and Spark refuses the column.",
        ("apache/datafusion#1360", "rapidsai/cudf#8070"),
        check=rows.nanoseconds,
    ),
    Rule(
        "UCS201", "wrong", "Files that cannot be read",
        "No Parquet under a Parquet name, cut off, damaged or encrypted: the epoch ends there.",
        ("webdataset/webdataset#503",),
        problems=("unreadable",), fix="copy or write the file again, or move it out of the folder",
    ),
    Rule(
        "UCS202", "wrong", "Files of no bytes",
        "Left by writers that were killed or had nothing to write; readers of Parquet and decoders of images end on "
        "them.",
        ("uber/petastorm#671", "delta-io/delta#6112", "apache/spark#20525"),
        problems=("zero_byte",), fix="remove the file, or write it again",
    ),
    Rule(
        "UCS203", "warn", "Marker files",
        "`_SUCCESS` and the like are no data, and readers that take every file of a folder for data end on them.",
        ("apache/arrow#27501",),
        problems=("marker",), fix="remove them; or uc-stage cache, which leaves them out",
    ),
    Rule(
        "UCS204", "warn", "Row groups of no rows",
        "`load_dataset` ends on a row group without rows: `BatchSize must be greater than 0`.",
        ("uber/petastorm#671", "delta-io/delta#6112"),
        problems=("empty_row_group",), fix="write the file anew without them: uc-stage export writes none",
    ),
    Rule(
        "UCS205", "warn", "Types that `datasets` does not take",
        "Maps have no feature in `datasets`, and `load_dataset` ends on them after the download. Where it is "
        "installed the library itself is asked, with the schema alone.",
        ("huggingface/datasets#5612",),
        check=types.datasets_types,
    ),
    Rule(
        "UCS206", "info", "Types that torch does not take",
        "`default_collate` makes no batch of dates, times, decimals or NULL, and none of maps of different lengths. "
        "Where torch is installed it is asked, with two rows that are made for it, and only where a flag or the "
        "launcher tells of a training: to import it takes seconds. `uc_stage.loaders.torch` gives times as integers "
        "and the others as lists.",
        ("Megvii-BaseDetection/YOLOX#1523", "mllam/neural-lam#64"),
        check=types.torch_types,
    ),
    Rule(
        "UCS207", "warn", "Nested columns near 2 GiB in one row group",
        "Beyond it pyarrow needs several arrays for one column, which it does not do within lists, structs and maps: "
        "`Nested data conversions not implemented for chunked array outputs`.",
        ("apache/arrow#32723", "apache/arrow#21526", "huggingface/datasets#7793", "Eventual-Inc/Daft#4746"),
        check=layout.nested_columns,
    ),
    Rule(
        "UCS208", "warn", "Ranks with unequal rows",
        "Where files are dealt out to ranks, the rank with the fewest rows ends first, and DDP waits for its next "
        "gradient for ever. Told with `--world-size`, or where the launcher sets WORLD_SIZE.",
        ("Lightning-AI/pytorch-lightning#20404", "webdataset/webdataset#225", "huggingface/datasets#6437",
         "speechbrain/speechbrain#580", "ray-project/ray#66086"),
        check=ranks.unequal_rows,
    ),
    Rule(
        "UCS209", "warn", "No room for an Arrow copy",
        "`load_dataset` writes Parquet again, uncompressed, below HF_DATASETS_CACHE; 40 GB have become 720. Compared "
        "with what is free there.",
        ("huggingface/datasets#7502", "huggingface/datasets#1973"),
        check=machine.no_room,
    ),
    Rule(
        "UCS210", "warn", "`/dev/shm` too small",
        "A worker hands its batches over in shared memory. Where the batches that all workers keep ready do "
        "not fit, it dies of a bus error.",
        ("pytorch/pytorch#5040", "pytorch/pytorch#108861"),
        check=ranks.small_shm,
    ),
    Rule(
        "UCS211", "warn", "HF_HOME on a volume",
        "File locks fail or hang on `/Volumes` and `/dbfs`, and `datasets` locks each build.",
        ("huggingface/datasets#329", "huggingface/datasets#2618", "huggingface/datasets#6744",
         "huggingface/datasets#3983"),
        check=machine.shared_cache,
    ),
    Rule(
        "UCS212", "warn", "No rows, or no columns",
        "A condition that nothing met, or a result that came short in silence. `load_dataset` ends on an empty split.",
        ("databricks/databricks-sql-python#181",),
        check=layout.no_rows,
    ),
    Rule(
        "UCS213", "warn", "Row groups too large",
        "A row group is read and decoded whole: it bounds a worker's memory from below, and rows are shuffled among "
        "as many as fit.",
        ("huggingface/dataset-viewer#1771", "huggingface/dataset-viewer#1491", "huggingface/datasets#7047",
         "pola-rs/polars#25307", "uber/petastorm#398", "uber/petastorm#624"),
        check=layout.large_groups,
    ),
    Rule(
        "UCS301", "warn", "Fewer files than workers",
        "`datasets` and others share out whole files: workers beyond their number stop. Told with `--world-size` or "
        "`--workers`, or where the launcher sets WORLD_SIZE.",
        ("huggingface/datasets#7999", "huggingface/datasets#5984", "huggingface/lerobot#2934",
         "hiyouga/LLaMA-Factory#9590", "modelscope/ms-swift#4061", "mosaicml/llm-foundry#639",
         "webdataset/webdataset#72"),
        check=ranks.few_files,
    ),
    Rule(
        "UCS302", "warn", "Row groups too small",
        "Each row group is a read of each column, and on a volume a round trip; thousands of tiny ones cost more than "
        "their rows.",
        ("ClickHouse/ClickHouse#53069", "uber/petastorm#90"),
        check=layout.small_groups,
    ),
    Rule(
        "UCS303", "warn", "Many small files",
        "To list, open and close a file on a volume takes longer than to read a few kilobytes.",
        ("uber/petastorm#720",),
        check=layout.small_files,
    ),
    Rule(
        "UCS304", "warn", "Files that are no multiple of the ranks",
        "`split_dataset_by_node` of a streamed dataset gives each rank files of its own only where they go up; else "
        "every rank reads all files, and skips the rows of the others. Told with `--world-size`, or where the launcher "
        "sets WORLD_SIZE.",
        ("huggingface/datasets#5984", "huggingface/datasets#6437"),
        check=ranks.uneven_files,
    ),
    Rule(
        "UCS401", "info", "An export behind its table",
        "The table has newer versions. An export of a pinned version is meant to stay.",
        (),
        check=rows.old_export,
    ),
    Rule(
        "UCS402", "info", "Other files that are no part of it",
        "Loaders that take every file of a folder for data end on them.",
        ("apache/arrow#27501",),
        problems=("extra",), fix="move them out of the folder",
    ),
    Rule(
        "UCS403", "info", "An export that is running",
        "Its files are there before its manifest names them; a listing reads them already.",
        (),
        problems=("in_progress",), fix="wait for its end; or read the files that the manifest names",
    ),
)  # fmt: skip
_BY_ID = {rule.id: rule for rule in RULES}
# Of one code with two rules, the first is that of Parquet files.
_BY_CODE = {code: rule for rule in reversed(RULES) for code in rule.problems}
_OTHER = _BY_ID["UCS402"]


def known(ids: Iterable[str]) -> frozenset[str]:
    """The ids, in upper case.

    Raises:
        InvalidRequest: one that is no rule's.
    """
    found = frozenset(one.strip().upper() for one in ids)
    for one in sorted(found - _BY_ID.keys()):
        raise InvalidRequest(
            f"`--ignore {one}` names no rule", hint=f"docs/rules.md has them, {RULES[0].id} to {RULES[-1].id}"
        )
    return found


def judged(problems: Iterable[Problem], ignored: frozenset[str]) -> tuple[Problem, ...]:
    """The problems with their rules, without those of ignored rules."""
    told = []
    for problem in problems:
        rule = _BY_CODE[problem.code]
        if problem.code in _OTHER.problems and not is_parquet_name(problem.path or ""):
            rule = _OTHER
        told.append(dataclasses.replace(problem, rule=rule.id, severity=rule.severity, fix=rule.fix))
    return tuple(problem for problem in told if problem.rule not in ignored)


def advise(facts: Facts, ignored: frozenset[str], rules: Sequence[Rule] = RULES) -> tuple[Advice, ...]:
    """What the rules say, the most severe first and then by their ids."""
    told = [
        Advice(rule.id, rule.severity, found.message, found.evidence, found.fix)
        for rule in rules
        if rule.check is not None and rule.id not in ignored
        for found in rule.check(facts)
    ]
    return tuple(sorted(told, key=lambda one: (_SEVERITIES.index(one.severity), one.rule)))
