"""Where images come from: folders, parquet files, tar shards and named sets."""

from t2t.data.sources.base import (
    FileSource,
    Source,
    Splits,
    Subset,
    holdout,
    mixed_order,
)
from t2t.data.sources.named import NAMES, ArraySource, cache_folder
from t2t.data.sources.opening import open_source, open_splits
from t2t.data.sources.parquet import ParquetSource
from t2t.data.sources.shards import ShardSource

__all__ = [
    "NAMES",
    "ArraySource",
    "FileSource",
    "ParquetSource",
    "ShardSource",
    "Source",
    "Splits",
    "Subset",
    "cache_folder",
    "holdout",
    "mixed_order",
    "open_source",
    "open_splits",
]
