"""Sources of images: folders, parquet files, tar shards and named data sets."""

from t2t.data.sources.base import (
    ArraySource,
    FileSource,
    Source,
    Splits,
    Subset,
)
from t2t.data.sources.named import NAMES, register_source
from t2t.data.sources.open_splits import open_source, open_splits
from t2t.data.sources.parquet import ParquetSource
from t2t.data.sources.shards import ShardSource
from t2t.data.sources.splitting import holdout, mixed_order

__all__ = [
    "NAMES",
    "ArraySource",
    "FileSource",
    "ParquetSource",
    "ShardSource",
    "Source",
    "Splits",
    "Subset",
    "holdout",
    "mixed_order",
    "open_source",
    "open_splits",
    "register_source",
]
