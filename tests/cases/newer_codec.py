"""The next version's codec, as far as this version is concerned: it writes what nobody here can read."""

import copy

from runfold.core.events import Event
from runfold.log import formats
from runfold.log.codec import Codec
from runfold.log.datum import unfold
from runfold.log.schemas import fingerprint, schema_of


class NewerCodec(Codec):
    """Of the next version, in which records of one type say something more."""

    def __init__(self, kind: type[Event]) -> None:
        super().__init__()
        schema = copy.deepcopy(schema_of(kind.__name__))
        schema["fields"].append({"name": "novelty", "type": "string", "default": ""})
        datum, prefix = unfold(kind), b"\xc3\x01" + fingerprint(schema)
        self._writings[kind] = formats.Writing(prefix, formats._parse(schema), lambda event: datum(event) | {"novelty": "much"})
        self._readings[fingerprint(schema)] = formats._reading(schema)
