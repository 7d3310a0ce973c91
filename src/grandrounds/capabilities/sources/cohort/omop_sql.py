"""OMOP tables in a database, through SQLAlchemy: SQLite, DuckDB and PostgreSQL.

Transactions are read-only and rolled back. Rows are selected by the database and come in batches. Long lists of concept ids
are sent in parts, so that no limit on the length of a statement is met.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from grandrounds.capabilities.sources.cohort.omop_tables import TABLES, Batch, Kind, Match, TableCounts
from grandrounds.capabilities.sources.sql_source import open_database
from grandrounds.core.errors import BadInput

_ROWS = 20_000  # rows that are fetched at a time
_IDS = 5_000  # concept ids of one statement
_WORDS = 400  # words of one statement


class SqlTables:
    """A `TableReader` of a database."""

    def __init__(self, address: str, *, schema: str | None = None) -> None:
        """Open a database and find the tables.

        Args:
            address: The URL.
            schema: The schema of the tables; None takes the option `schema` of the URL, else the schema that has them.

        Raises:
            BadInput: The URL is wrong, the database does not answer, or several schemas have the tables.
        """
        self._database = open_database(address)
        self.name = self._database.name
        self._schema: str | None = None
        self._spelled: dict[str, str] = {}
        self._columns: dict[str, dict[str, str]] = {}
        self._clauses: dict[str, tuple[Any, dict[str, Any]]] = {}
        try:
            self._find_tables(schema or self._database.schema)
        except BaseException:
            self.close()
            raise

    def tables(self) -> tuple[str, ...]:
        """List the tables of the data model that are there."""
        return tuple(t for t in TABLES if t in self._spelled)

    def columns(self, table: str) -> tuple[str, ...]:
        """List the columns of a table; none where it is missing."""
        return tuple(self._spell_columns(table))

    def read(self, table: str, columns: Sequence[str], match: Match | None = None) -> Iterator[Batch]:
        """Read columns of a table, a batch of rows at a time.

        Args:
            table: The table.
            columns: Columns that it has.
            match: Rows to read; columns that it names are read as well. None reads all.

        Yields:
            Batches that are not empty.

        Raises:
            BadInput: The database did not answer.
        """
        if match is None:
            yield from self._select(table, columns, None)
            return
        further = [c for c in (*match.ids, *match.words) if c not in columns]
        steps = [Match({c: i}) for c, i in match.ids.items()] + [Match({}, {c: w}) for c, w in match.words.items()]
        for place, own in enumerate(steps):
            for condition in self._conditions(table, own):
                for batch in self._select(table, [*columns, *further], condition):
                    kept = own.mask(batch)
                    for earlier in steps[:place]:  # a row that matches by two columns is given once
                        kept &= ~earlier.mask(batch)
                    if kept.any():
                        yield batch.take(kept)

    def count(self, table: str, concept: str, *, number: str | None = None, units: Sequence[str] = ()) -> TableCounts:
        """Count rows and patients by concept, in the database; arguments as in `TableReader.count`."""
        import sqlalchemy as sa

        source, cells = self._clause(table)
        keys = [cells[c] for c in (concept, *units)]
        counted = sa.literal(0) if number is None else sa.func.count(cells[number])
        by_unit = sa.select(*keys, sa.func.count(), counted).select_from(source).group_by(*keys)
        people = sa.func.count(sa.distinct(cells["person_id"]))
        by_concept = sa.select(cells[concept], people).select_from(source).group_by(cells[concept])
        counts = TableCounts()
        with self._database.connect(setting="the schema") as connection:
            groups = list(connection.execute(by_unit))
            patients = list(connection.execute(by_concept))
        columns = {c: [row[i] for row in groups] for i, c in enumerate((concept, *units))}
        kinds: dict[str, Kind] = {concept: "id", "unit_concept_id": "id", "unit_source_value": "word"}
        values = Batch(f"table {table}", self.name, columns).convert(kinds)
        for row, *group in zip(groups, *(values[c].tolist() for c in kinds), strict=True):
            counts.add(*group, records=int(row[-2]), numbers=int(row[-1]))
        ids = Batch(f"table {table}", self.name, {concept: [row[0] for row in patients]}).ids(concept)
        counts.patients.update(zip(ids.tolist(), (int(row[1]) for row in patients), strict=True))
        return counts

    def close(self) -> None:
        """Close the connections."""
        self._database.engine.dispose()

    def _find_tables(self, schema: str) -> None:
        """Find the schema with the table person, and how names are spelled."""
        import sqlalchemy as sa

        with self._database.connect(setting="the schema") as connection:
            inspector = sa.inspect(connection)

            def spell(name: str | None) -> dict[str, str]:
                found = [*inspector.get_table_names(name), *inspector.get_view_names(name)]
                return {t.lower(): t for t in found if t.lower() in TABLES}

            schemas = inspector.get_schema_names()
            if schema:
                known = {s.lower(): s for s in schemas} | {s.rpartition(".")[2].lower(): s for s in schemas}
                if schema.lower() not in known:
                    raise BadInput(
                        f"{self.name} has no schema '{schema}'; schemas are: {', '.join(schemas)}",
                        code="unknown-schema",
                    )
                self._schema = known[schema.lower()]
                self._spelled = spell(self._schema)
                return
            listed = (
                connection.dialect.name != "duckdb"
            )  # which lists the tables of all schemas as those of the usual one
            self._spelled = spell(None) if listed else {}
            if "person" in self._spelled:
                return
            having = [s for s in schemas if not s.endswith("information_schema") and "person" in spell(s)]
            having = [s for s in having if not listed and s.rpartition(".")[2] == "main"] or having
            if len(having) > 1:
                raise BadInput(
                    f"{self.name} has the table person in {len(having)} schemas: {', '.join(having)}; "
                    f"name one, such as ?schema={having[0]} in the URL",
                    code="ambiguous-schema",
                )
            if having:
                self._schema = having[0]
                self._spelled = spell(having[0])

    def _spell_columns(self, table: str) -> Mapping[str, str]:
        """Return the spelling of each column by its name in lower case."""
        import sqlalchemy as sa

        if table not in self._columns:
            names: list[str] = []
            if table in self._spelled:
                nothing = sa.select(sa.text("*")).select_from(self._table(table)).where(sa.text("1 = 0"))
                with self._database.connect(setting="the schema") as connection:
                    names = list(map(str, connection.execute(nothing).keys()))
            self._columns[table] = {n.lower(): n for n in names}
        return self._columns[table]

    def _table(self, table: str, *columns: Any) -> Any:
        import sqlalchemy as sa

        return sa.table(self._spelled[table], *columns, schema=self._schema)

    def _clause(self, table: str) -> tuple[Any, dict[str, Any]]:
        """Return a table of a statement with its columns."""
        import sqlalchemy as sa

        if table not in self._clauses:
            spelled = self._spell_columns(table)
            source = self._table(table, *(sa.column(n) for n in spelled.values()))
            self._clauses[table] = source, {name: source.c[n] for name, n in spelled.items()}
        return self._clauses[table]

    def _conditions(self, table: str, match: Match) -> Iterator[Any]:
        """Split the matching of one column into conditions that no row meets twice."""
        import sqlalchemy as sa

        _, cells = self._clause(table)
        for column, ids in match.ids.items():
            for start in range(0, len(ids), _IDS):
                part = ", ".join(str(int(i)) for i in ids[start : start + _IDS])
                yield cells[column].op("IN")(sa.literal_column(f"({part})"))
        for column, words in match.words.items():
            text = sa.cast(cells[column], sa.String)
            beginnings = sa.or_(*(text.startswith(p, autoescape=True) for p in words.prefixes), sa.false())
            exact = sorted(w for w in words.exact if not words.prefixes or not w.startswith(words.prefixes))
            for start in range(0, len(exact), _WORDS):
                yield text.in_(exact[start : start + _WORDS])
            if words.prefixes:
                yield beginnings

    def _select(self, table: str, columns: Sequence[str], condition: Any) -> Iterator[Batch]:
        import sqlalchemy as sa

        source, cells = self._clause(table)
        query = sa.select(*(cells[c] for c in columns)).select_from(source)
        if condition is not None:
            query = query.where(condition)
        with self._database.connect(setting="the schema") as connection:
            result = connection.execution_options(stream_results=True).execute(query)
            for rows in result.partitions(_ROWS):
                cells_by_column = {c: list(v) for c, v in zip(columns, zip(*rows, strict=True), strict=True)}
                yield Batch(f"table {table}", self.name, cells_by_column)
