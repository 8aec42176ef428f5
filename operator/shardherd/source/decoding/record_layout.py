"""The tables that the compiled loops share with their callers: columns of a batch's row, bits, cursor entries and statuses.

Read by `record_kernels` (as constants), `record_batches` and `record_rows`. It needs neither numba nor anything else.
"""

from __future__ import annotations

HEADER_SIZE = 61
"""Bytes of a record batch of format 2 before its records."""

LEGACY_HEADER_SIZE = 14
"""Bytes of a message of format 0 from its checksum on; format 1 has 8 more."""

SMALLEST_RECORD = 7
"""Bytes of a record that has nothing in it: what bounds how many there can be in a batch."""

SMALLEST_HEADER = 2
"""Bytes of a record's header that has nothing in it."""

# Columns of one row that `scan` writes for a batch. POSITION and END are of its records; of the whole entry in formats 0 and 1.
POSITION, END, BASE_OFFSET, LAST_OFFSET, ATTRIBUTES, FIRST_TIMESTAMP, MAX_TIMESTAMP, COUNT = range(8)
PRODUCER, CHECKSUM, FORMAT, IN_PLACE = range(8, 12)
BATCH_FIELDS = 12

# Of the last row, which is of no batch: bytes of the largest batch, and how many batches have records of users.
LARGEST, OF_USERS = END, COUNT

CODEC_MASK = 0x07
LOG_APPEND_TIME = 0x08
TRANSACTIONAL = 0x10
CONTROL = 0x20

# What the caller of `records` wants, as bits.
WANT_KEY, WANT_VALUE, WANT_OFFSET, WANT_TIMESTAMP, WANT_TIMESTAMP_TYPE, WANT_HEADERS = 1, 2, 4, 8, 16, 32

# Entries of the cursor of `records`: how far each column is written, and the batch that is being read.
ROWS, KEY_BYTES, VALUE_BYTES, NULL_KEYS, NULL_VALUES, HEADERS, HEADER_KEY_BYTES, HEADER_VALUE_BYTES = range(8)
NULL_HEADERS, NULL_HEADER_VALUES, AT_BATCH = range(8, 11)
CURSOR_FIELDS = 11

# Statuses below zero; `record_batches` has a sentence for each.
BAD_LENGTH, BAD_FORMAT, BAD_COUNT, BAD_VARINT = -1, -2, -3, -4
BAD_RECORD, BAD_OFFSET, TRAILING_BYTES, BAD_BATCH_ORDER, BAD_TIMESTAMP, BAD_HEADERS = -5, -6, -7, -8, -9, -10
