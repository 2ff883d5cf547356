"""The tables in PostgreSQL: the only importer of psycopg.

`Writer` is the projector's side (blocking), `Reader` the API's (asyncio). The SQL is in ``queries.sql``, by name, and in
``migrations/``, by number. Every name in a statement is looked up in one schema, "public" unless said otherwise, so that a second
set of tables can be built beside the live one.
"""

from runfold_projector.store.address import answering, check_dsn
from runfold_projector.store.errors import StoreError
from runfold_projector.store.migrating import migrate
from runfold_projector.store.reading import Reader
from runfold_projector.store.writing import Writer

__all__ = ["Reader", "StoreError", "Writer", "answering", "check_dsn", "migrate"]
