"""Decode the rows of a batch once, for all stages of a worker.

Decoded objects are objects of the rows (`batch.objects`), made when a stage first asks and shared by the stages that
run in the same worker. They are always what the encoded bytes decode to: a stage that changes an object changes its
bytes. So they need not be sent to other processes, and are not (`Batch.decoded_objects`).

A row that cannot be decoded is set aside: it goes to quarantine with the reason, and the others go on.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, NamedTuple

from gristmill.core.arrow.array_building import as_one_array
from gristmill.core.arrow.table_conversion import POSITION, table_to_rows
from gristmill.core.batch import SOURCE_FILE
from gristmill.core.errors import BadRecordError
from gristmill.core.run.row_progress import in_turn
from gristmill.samples.batch import BadSample, SampleBatch
from gristmill.samples.sample_files import SOURCE

if TYPE_CHECKING:
    import pyarrow as pa

    from gristmill.core.stage import ProcessingStage

DECODE_THREADS = "decode_threads"
"""Key in `Batch.metadata`: how many threads decode the rows of the batch. One unless a reader sets it."""


class Decoder(NamedTuple):
    """How objects of one kind are made of encoded bytes."""

    name: str
    """Where they are kept: `batch.objects[name]`. It begins with one of `SampleBatch.decoded_objects`."""
    decode: Callable[[Any], Any]
    """Takes bytes or a memoryview; raises BadSample."""
    threads: int | None = None
    """None: as the reader says (`DECODE_THREADS`)."""


def decoded_objects(
    batch: SampleBatch,
    decoder: Decoder,
    stage: ProcessingStage[Any, Any] | None = None,
    field: str | None = None,
) -> list[Any]:
    """The decoded object of each row; None for one that cannot be decoded, which is set aside for the `stage`. The
    caller must drop such rows. Without a stage a bad row raises."""
    objects: list[Any] | None = batch.objects.get(decoder.name)
    if objects is None:
        objects = set_aside_bad_samples(batch, decode_once(batch, decoder, field), stage)
        batch.objects[decoder.name] = objects
    return objects


def share_decoded(batch: SampleBatch) -> list[dict[Any, Any]]:
    """For each row a dict of what has been decoded of it, by the name of the decoder. Batches that are made of this one
    from now on share the dicts of their rows: what one of them decodes, the others have."""
    cells: list[dict[Any, Any]] = batch.objects.setdefault(_shared_name(batch), [{} for _ in range(batch.num_items)])
    return cells


def _shared_name(batch: SampleBatch) -> str:
    return f"{batch.decoded_objects[0]}_by_row"


def decode_once(batch: SampleBatch, decoder: Decoder, field: str | None = None) -> list[Any]:
    """As `decode_rows`, but for rows that a batch which shares them has decoded."""
    cells = batch.objects.get(_shared_name(batch))
    if cells is None:
        return decode_rows(batch, decoder, field)
    missing = [row for row, cell in enumerate(cells) if decoder.name not in cell]
    asked = batch if len(missing) == len(cells) else batch.take(missing)
    for row, result in zip(missing, decode_rows(asked, decoder, field) if missing else (), strict=True):
        cells[row][decoder.name] = result
    return [cell[decoder.name] for cell in cells]


def decode_rows(batch: SampleBatch, decoder: Decoder, field: str | None = None) -> list[Any]:
    """The decoded object of each row, or a BadSample."""

    def attempt(view: memoryview | None) -> Any:
        try:
            return decoder.decode(b"" if view is None else view)
        except BadSample as error:
            return error

    views = encoded_views(batch, field)
    threads = min(decoder.threads or int(batch.metadata.get(DECODE_THREADS, 1)), len(views))
    if threads <= 1:
        return [attempt(view) for view in in_turn(views)]
    with ThreadPoolExecutor(threads) as pool:
        return list(in_turn(pool.map(attempt, views)))


def set_aside_bad_samples(
    batch: SampleBatch, results: Sequence[Any], stage: ProcessingStage[Any, Any] | None
) -> list[Any]:
    """The results, with None in place of each BadSample. Its row is set aside for the stage; without one, it raises."""
    for index, result in enumerate(results):
        if not isinstance(result, BadSample):
            continue
        row = table_to_rows(batch.data.slice(index, 1))[0]
        position, file = row.pop(POSITION, None), batch.metadata.get(SOURCE_FILE)
        sample_id = row.get(batch.id_column)
        reason = str(result) if sample_id is None else f"{batch.sample_name} {sample_id!r}: {result}"
        if stage is None:
            raise BadRecordError(f"{file or row.get(SOURCE) or batch.sample_name}: {reason}")
        stage.set_aside(reason, row=row, file=file, position=position)
    return [None if isinstance(result, BadSample) else result for result in results]


def encoded_views(batch: SampleBatch, field: str | None = None) -> list[memoryview | None]:
    """The encoded bytes of each row, without a copy; None where there are none."""
    column: pa.Array = as_one_array(batch.data.column(field or batch.encoded_column))
    buffers = (value.as_buffer() for value in column)
    return [None if buffer is None else memoryview(buffer).cast("B") for buffer in buffers]


def without_decoded(batch: SampleBatch) -> dict[str, list[Any]]:
    """The objects of a batch that are not decoded from its encoded column: what remains true when that changes."""
    return {name: values for name, values in batch.objects.items() if not name.startswith(batch.decoded_objects)}
