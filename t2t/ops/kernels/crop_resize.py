"""Crop and resize over a ragged buffer: one kernel for columns, one for rows."""

import triton
import triton.language as tl


@triton.jit
def filter_weight(distance, cubic):
    distance = tl.abs(distance)
    near = (1.5 * distance - 2.5) * distance * distance + 1.0
    far = ((-0.5 * distance + 2.5) * distance - 4.0) * distance + 2.0
    far = tl.where(distance < 2.0, far, 0.0)
    smooth = tl.where(distance < 1.0, near, far)
    return tl.where(cubic != 0, smooth, tl.maximum(1.0 - distance, 0.0))


@triton.jit
def filter_window(output, start, stop, num_out, num_in, cubic):
    """Centre, window and stretch of the filter for each output position."""
    scale = (stop - start) / num_out
    stretch = tl.maximum(scale, 1.0)
    reach = stretch * (cubic + 1).to(tl.float32)
    center = start + (output.to(tl.float32) + 0.5) * scale
    low = tl.maximum(tl.floor(center - reach + 0.5).to(tl.int32), 0)
    high = tl.minimum(tl.floor(center + reach + 0.5).to(tl.int32), num_in)
    return center, low, high, stretch, (2.0 * reach).to(tl.int32) + 2


@triton.jit
def narrow_columns(
    pixels_ptr,
    narrowed_ptr,
    table_ptr,
    owners_ptr,
    boxes_ptr,
    num_columns,
    channels,
    LINES: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    """Resizes columns, in the rows that are needed: C×H×W → C×rows×columns."""
    # Each sample has as many programs as its lines need. With the same number for all,
    # one large image would leave most programs of the others idle.
    program = tl.program_id(0)
    sample = tl.load(owners_ptr + program)
    entry = table_ptr + sample * 9
    offset = tl.load(entry)
    height = tl.load(entry + 1)
    width = tl.load(entry + 2)
    row_offset = tl.load(entry + 3)
    first_row = tl.load(entry + 4).to(tl.int32)
    num_rows = tl.load(entry + 5).to(tl.int32)
    cubic = tl.load(entry + 6).to(tl.int32)
    interleaved = tl.load(entry + 7)
    first_program = tl.load(entry + 8).to(tl.int32)
    left = tl.load(boxes_ptr + sample * 4)
    right = tl.load(boxes_ptr + sample * 4 + 2)
    lines = (program - first_program) * LINES + tl.arange(0, LINES)
    columns = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    center, low, high, stretch, num_taps = filter_window(
        columns, left, right, num_columns, width.to(tl.int32), cubic
    )
    inside = lines < channels * num_rows
    pixel_stride = tl.where(interleaved != 0, channels, 1)
    channel_stride = tl.where(interleaved != 0, 1, height * width)
    source = (
        pixels_ptr
        + offset
        + (lines // num_rows) * channel_stride
        + (first_row + lines % num_rows) * width * pixel_stride
    )
    value = tl.zeros((LINES, COLUMNS), dtype=tl.float32)
    total = tl.zeros((COLUMNS,), dtype=tl.float32)
    for tap in range(num_taps):
        position = low + tap
        used = (position < high) & (columns < num_columns)
        distance = (position.to(tl.float32) + 0.5 - center) / stretch
        weight = tl.where(used, filter_weight(distance, cubic), 0.0)
        grey = tl.load(
            source[:, None] + (position * pixel_stride)[None, :],
            mask=inside[:, None] & used[None, :],
            other=0,
        )
        value += weight[None, :] * grey.to(tl.float32)
        total += weight
    total = tl.where(columns < num_columns, total, 1.0)
    value = tl.floor(value / total[None, :] + 0.5)
    value = tl.minimum(tl.maximum(value, 0.0), 255.0)
    written = (row_offset * channels + lines) * num_columns
    tl.store(
        narrowed_ptr + written[:, None] + columns[None, :],
        value.to(tl.uint8),
        mask=inside[:, None] & (columns < num_columns)[None, :],
    )


@triton.jit
def shorten_rows(
    narrowed_ptr,
    output_ptr,
    table_ptr,
    boxes_ptr,
    num_lines,
    num_columns,
    channels,
    LINES: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    """Resizes rows: C×rows×columns → one image of the batch."""
    sample = tl.program_id(1)
    entry = table_ptr + sample * 9
    height = tl.load(entry + 1).to(tl.int32)
    row_offset = tl.load(entry + 3)
    first_row = tl.load(entry + 4).to(tl.int32)
    num_rows = tl.load(entry + 5).to(tl.int32)
    cubic = tl.load(entry + 6).to(tl.int32)
    top = tl.load(boxes_ptr + sample * 4 + 1)
    bottom = tl.load(boxes_ptr + sample * 4 + 3)
    lines = tl.program_id(0) * LINES + tl.arange(0, LINES)
    columns = tl.program_id(2) * COLUMNS + tl.arange(0, COLUMNS)
    inside = lines < channels * num_lines
    wide = columns < num_columns
    center, low, high, stretch, num_taps = filter_window(
        lines % num_lines, top, bottom, num_lines, height, cubic
    )
    first_line = row_offset * channels + (lines // num_lines) * num_rows
    value = tl.zeros((LINES, COLUMNS), dtype=tl.float32)
    total = tl.zeros((LINES,), dtype=tl.float32)
    for tap in range(num_taps):
        position = low + tap
        used = (position < high) & inside
        distance = (position.to(tl.float32) + 0.5 - center) / stretch
        weight = tl.where(used, filter_weight(distance, cubic), 0.0)
        source = (first_line + position - first_row) * num_columns
        grey = tl.load(
            narrowed_ptr + source[:, None] + columns[None, :],
            mask=used[:, None] & wide[None, :],
            other=0,
        )
        value += weight[:, None] * grey.to(tl.float32)
        total += weight
    total = tl.where(inside, total, 1.0)
    value = tl.floor(value / total[:, None] + 0.5)
    value = tl.minimum(tl.maximum(value, 0.0), 255.0)
    written = (sample.to(tl.int64) * channels * num_lines + lines) * num_columns
    tl.store(
        output_ptr + written[:, None] + columns[None, :],
        value.to(tl.uint8),
        mask=inside[:, None] & wide[None, :],
    )
