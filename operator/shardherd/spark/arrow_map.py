"""Spark's `mapInArrow`, also where pandas is not installed: it passes Arrow's batches on as they are, and yet asks for pandas.

The sinks call it, and applications may, for example with `async_map`. Nothing else of them touches a name of PySpark with an
underscore. Where pandas is there, the public method is called; else
what that method calls after it has asked (PySpark 4.2 and 4.3).
"""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.util import PythonEvalType

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

Function = Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]


def map_in_arrow(frame: DataFrame, function: Function, schema: str) -> DataFrame:
    """As `frame.mapInArrow(function, schema)`."""
    if importlib.util.find_spec("pandas") is not None:
        return frame.mapInArrow(function, schema)
    return _without_pandas(frame, function, schema)


def _without_pandas(frame: DataFrame, function: Function, schema: str) -> DataFrame:
    from pyspark.sql.classic.dataframe import DataFrame as ClassicDataFrame

    functions: Any = importlib.import_module("pyspark.sql.pandas.functions")  # whose types leave this one out
    udf = functions.vectorized_udf(function, returnType=schema, functionType=PythonEvalType.SQL_MAP_ARROW_ITER_UDF)
    mapped = frame._jdf.mapInArrow(udf(*[frame[name] for name in frame.columns])._jc, False, None)
    return ClassicDataFrame(mapped, frame.sparkSession)
