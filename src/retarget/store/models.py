"""The model registry in SQL: models, versions, tags, aliases, and the files of versions."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from sqlalchemy import (
    ColumnElement,
    Connection,
    Engine,
    Table,
    and_,
    delete,
    func,
    insert,
    select,
    tuple_,
    update,
)
from sqlalchemy.exc import IntegrityError

from retarget.core.errors import Conflict, Invalid, NotFound
from retarget.core.jobs import Output
from retarget.core.models import (
    ACTIVE_STAGES,
    LATEST,
    REGISTRY,
    STAGES,
    Lineage,
    Model,
    ModelVersion,
)
from retarget.core.tracking import artifact_path
from retarget.store.artifacts import below
from retarget.store.engine import reading, upsert, writing
from retarget.store.logged_models import note_version
from retarget.store.ownership import check_owns_model, check_owns_version
from retarget.store.schema import (
    artifacts,
    model_aliases,
    model_tags,
    model_version_tags,
    model_versions,
    models,
)

_NAMES_PER_QUERY = 400  # or names with versions
_LINEAGE = frozenset(Lineage.model_fields)
_OTHER_TABLES = {"lineage", "tags", "aliases"}  # fields of a version that are not columns


class Models:
    def __init__(self, engine: Engine) -> None:
        self.engine = engine

    def create(
        self,
        name: str,
        description: str,
        tags: Mapping[str, str],
        *,
        now: int,
        by_job: str | None = None,
    ) -> Model:
        """Store a new model, or raise Conflict if its name is taken."""
        row = _new(name, description, now) | {"created_by_job": by_job}
        try:
            with writing(self.engine) as db:
                db.execute(insert(models).values(row))
                for key, value in tags.items():
                    db.execute(insert(model_tags).values(name=name, key=key, value=value))
                return _get(db, name)
        except IntegrityError:
            raise Conflict(f"Registered Model (name={name}) already exists.") from None

    def get(self, name: str) -> Model:
        with reading(self.engine) as db:
            return _get(db, name)

    def load(self, names: Sequence[str]) -> list[Model]:
        """Return these models, in this order. Missing ones are omitted."""
        by_name: dict[str, Model] = {}
        with reading(self.engine) as db:
            for start in range(0, len(names), _NAMES_PER_QUERY):
                by_name |= _load(db, names[start : start + _NAMES_PER_QUERY])
        return [by_name[name] for name in names if name in by_name]

    def rename(self, name: str, new_name: str, *, now: int, by_job: str | None = None) -> Model:
        """Rename a model. A job (`by_job`) may do so only with its own."""
        try:
            with writing(self.engine) as db:
                check_owns_model(db, name, by_job)
                _change(db, name, name=new_name, changed_at=now)
                # the foreign key has renamed the versions along with the model
                of_model = model_versions.c.name == new_name
                db.execute(update(model_versions).where(of_model).values(changed_at=now))
                return _get(db, new_name)
        except IntegrityError:
            raise Conflict(f"Registered Model (name={new_name}) already exists.") from None

    def describe(self, name: str, description: str, *, now: int) -> Model:
        with writing(self.engine) as db:
            _change(db, name, description=description, changed_at=now)
            return _get(db, name)

    def delete(self, name: str, *, by_job: str | None = None) -> None:
        """Remove a model with its versions, and the files that only they used."""
        of_model = model_versions.c.name == name
        with writing(self.engine) as db:
            check_owns_model(db, name, by_job)
            folders = set(db.scalars(select(model_versions.c.location).where(of_model)))
            if not db.execute(delete(models).where(models.c.name == name)).rowcount:
                raise _no_model(name)
            _remove_files(db, folders)

    def set_tag(self, name: str, key: str, value: str) -> None:
        with writing(self.engine) as db:
            _check(db, name)
            row = {"name": name, "key": key, "value": value}
            upsert(db, model_tags, row, replace=("value",))

    def delete_tag(self, name: str, key: str) -> None:
        """Remove a tag. A missing tag is not an error."""
        with writing(self.engine) as db:
            _check(db, name)
            is_tag = (model_tags.c.name == name) & (model_tags.c.key == key)
            db.execute(delete(model_tags).where(is_tag))

    def set_alias(self, name: str, alias: str, version: int) -> None:
        """Point an alias to a version. If it points to another version, it moves."""
        with writing(self.engine) as db:
            _check_version(db, name, version)
            row = {"name": name, "alias": alias, "version": version}
            upsert(db, model_aliases, row, replace=("version",))

    def delete_alias(self, name: str, alias: str) -> None:
        """Remove an alias. A missing alias is not an error."""
        with writing(self.engine) as db:
            _check(db, name)
            is_alias = (model_aliases.c.name == name) & (model_aliases.c.alias == alias)
            db.execute(delete(model_aliases).where(is_alias))

    def by_alias(self, name: str, alias: str) -> ModelVersion:
        """Return the version that an alias points to. `latest` is the newest version."""
        with reading(self.engine) as db:
            _check(db, name)
            if alias.lower() == LATEST:
                newest = func.max(model_versions.c.version)
                version = db.scalar(select(newest).where(model_versions.c.name == name))
                if version is None:
                    raise NotFound(f"Latest version not found for model {name}.")
            else:
                is_alias = (model_aliases.c.name == name) & (model_aliases.c.alias == alias)
                version = db.scalar(select(model_aliases.c.version).where(is_alias))
                if version is None:
                    raise Invalid(f"Registered model alias {alias} not found.", field="alias")
            return _get_version(db, name, version)

    def latest(self, name: str, stages: Iterable[str] = STAGES) -> list[ModelVersion]:
        """Return the newest version in each of these stages."""
        return [version for version in self.get(name).latest if version.stage in stages]

    def add_version(
        self, draft: ModelVersion, files: Sequence[Output] = (), *, make: bool = False
    ) -> ModelVersion:
        """Number a version and store it. A number is never used twice.

        With `make`, a missing model is created. `files` are stored below the version's location.
        """
        name, now = draft.name, draft.created_at
        with writing(self.engine) as db:
            if make:
                upsert(db, models, _new(name, "", now))
            _change(db, name, versions=models.c.versions + 1, changed_at=now)
            number = db.scalars(select(models.c.versions).where(models.c.name == name)).one()
            version = draft.model_copy(update={"version": number})
            db.execute(insert(model_versions).values(_row(version)))
            for key, value in draft.tags.items():
                _set_version_tag(db, name, number, key, value)
            _put_files(db, draft.location, files)
            if draft.model_id:
                note_version(db, draft.model_id, name, number)
        return version

    def get_version(self, name: str, version: int) -> ModelVersion:
        with reading(self.engine) as db:
            return _get_version(db, name, version)

    def versions(self, name: str) -> list[ModelVersion]:
        """Return all versions of a model, the newest first."""
        with reading(self.engine) as db:
            _check(db, name)
            query = select(model_versions.c.version).where(model_versions.c.name == name)
            numbers = list(db.scalars(query.order_by(model_versions.c.version.desc())))
        return self.load_versions([(name, number) for number in numbers])

    def load_versions(self, pairs: Sequence[tuple[str, int]]) -> list[ModelVersion]:
        """Return these versions, in this order. Missing ones are omitted."""
        by_pair: dict[tuple[str, int], ModelVersion] = {}
        with reading(self.engine) as db:
            for start in range(0, len(pairs), _NAMES_PER_QUERY):
                by_pair |= _load_versions(db, pairs[start : start + _NAMES_PER_QUERY])
        return [by_pair[pair] for pair in pairs if pair in by_pair]

    def describe_version(
        self, name: str, version: int, description: str, *, now: int
    ) -> ModelVersion:
        with writing(self.engine) as db:
            _change_version(db, name, version, description=description, changed_at=now)
            return _get_version(db, name, version)

    def move(
        self, name: str, version: int, stage: str, *, now: int, archive: bool = False
    ) -> ModelVersion:
        """Move a version to a stage. With `archive`, the other versions there become Archived."""
        if archive and stage not in ACTIVE_STAGES:
            raise Invalid(
                "Model version transition cannot archive existing model versions because "
                f"'{stage}' is not an Active stage. Valid stages are {ACTIVE_STAGES}"
            )
        in_stage = (model_versions.c.name == name) & (model_versions.c.stage == stage)
        others = in_stage & (model_versions.c.version != version)
        with writing(self.engine) as db:
            _change_version(db, name, version, stage=stage, changed_at=now)
            _change(db, name, changed_at=now)
            if archive:
                archive_others = update(model_versions).where(others)
                db.execute(archive_others.values(stage="Archived", changed_at=now))
            return _get_version(db, name, version)

    def delete_version(
        self, name: str, version: int, *, now: int, by_job: str | None = None
    ) -> None:
        """Remove a version with its tags and aliases, and the files that only it used."""
        with writing(self.engine) as db:
            stored = _get_version(db, name, version)
            check_owns_version(stored, by_job)
            location = stored.location
            db.execute(delete(model_versions).where(_is(model_versions, name, version)))
            _change(db, name, changed_at=now)
            _remove_files(db, {location})

    def set_version_tag(self, name: str, version: int, key: str, value: str) -> None:
        with writing(self.engine) as db:
            _check_version(db, name, version)
            _set_version_tag(db, name, version, key, value)

    def delete_version_tag(self, name: str, version: int, key: str) -> None:
        """Remove a tag. A missing tag is not an error."""
        is_tag = _is(model_version_tags, name, version) & (model_version_tags.c.key == key)
        with writing(self.engine) as db:
            _check_version(db, name, version)
            db.execute(delete(model_version_tags).where(is_tag))

    def snapshots(self) -> set[str]:
        """Return the digests of the snapshots that versions came from."""
        query = select(model_versions.c.snapshot).where(model_versions.c.snapshot.is_not(None))
        with reading(self.engine) as db:
            return set(db.scalars(query.distinct()))

    # last in the class: below it, `list` means this method
    def list(self) -> list[Model]:
        """Return all models, by name."""
        with reading(self.engine) as db:
            names = sorted(db.scalars(select(models.c.name)))
        return self.load(names)


def _new(name: str, description: str, now: int) -> dict[str, Any]:
    row = {"name": name, "description": description, "versions": 0}
    return row | {"created_at": now, "changed_at": now}


def _row(version: ModelVersion) -> dict[str, Any]:
    return version.model_dump(exclude=_OTHER_TABLES) | version.lineage.model_dump()


def _is(table: Table, name: str, version: int) -> ColumnElement[bool]:
    return and_(table.c.name == name, table.c.version == version)


def _check(db: Connection, name: str) -> None:
    if db.execute(select(models.c.name).where(models.c.name == name)).first() is None:
        raise _no_model(name)


def _check_version(db: Connection, name: str, version: int) -> None:
    query = select(model_versions.c.version).where(_is(model_versions, name, version))
    if db.execute(query).first() is None:
        raise _no_version(name, version)


def _change(db: Connection, name: str, /, **values: Any) -> None:
    if not db.execute(update(models).where(models.c.name == name).values(**values)).rowcount:
        raise _no_model(name)


def _change_version(db: Connection, name: str, version: int, **values: Any) -> None:
    is_version = _is(model_versions, name, version)
    if not db.execute(update(model_versions).where(is_version).values(**values)).rowcount:
        raise _no_version(name, version)


def _set_version_tag(db: Connection, name: str, version: int, key: str, value: str) -> None:
    row = {"name": name, "version": version, "key": key, "value": value}
    upsert(db, model_version_tags, row, replace=("value",))


def _put_files(db: Connection, location: str, files: Sequence[Output]) -> None:
    if files:
        folder = artifact_path(location)
        rows = [file.model_dump() | {"path": f"{folder}/{file.path}"} for file in files]
        db.execute(insert(artifacts), rows)


def _remove_files(db: Connection, locations: set[str]) -> None:
    """Remove the folders of versions, except those that another version refers to."""
    roots = {_version_folder(location) for location in locations} - {""}
    if roots:
        in_use = db.scalars(select(model_versions.c.location).distinct())
        roots -= {_version_folder(location) for location in in_use}
    for root in roots:
        db.execute(delete(artifacts).where(below(artifacts.c.path, root)))


def _version_folder(location: str) -> str:
    """Return the folder of a version that contains an address, or "" if none does."""
    top, _, rest = (artifact_path(location) or "").partition("/")
    return f"{top}/{rest.partition('/')[0]}" if top == REGISTRY and rest else ""


def _get(db: Connection, name: str) -> Model:
    by_name = _load(db, [name])
    if name not in by_name:
        raise _no_model(name)
    return by_name[name]


def _load(db: Connection, names: Sequence[str]) -> dict[str, Model]:
    rows = db.execute(select(models).where(models.c.name.in_(names))).mappings().all()
    tags: dict[str, dict[str, str]] = {}
    for row in db.execute(select(model_tags).where(model_tags.c.name.in_(names))):
        tags.setdefault(row.name, {})[row.key] = row.value
    aliases: dict[str, dict[str, int]] = {}
    for row in db.execute(select(model_aliases).where(model_aliases.c.name.in_(names))):
        aliases.setdefault(row.name, {})[row.alias] = row.version
    latest = _latest(db, names)
    return {
        row["name"]: Model(
            **{name: row[name] for name in ("name", "description", "created_at", "changed_at")},
            tags=tags.get(row["name"], {}),
            aliases=aliases.get(row["name"], {}),
            latest=tuple(latest.get(row["name"], ())),
        )
        for row in rows
    }


def _latest(db: Connection, names: Sequence[str]) -> dict[str, list[ModelVersion]]:
    newest = func.max(model_versions.c.version).label("newest")
    query = select(model_versions.c.name, newest).where(model_versions.c.name.in_(names))
    by_stage = query.group_by(model_versions.c.name, model_versions.c.stage)
    ordered = by_stage.order_by(func.min(model_versions.c.version))
    pairs = [(row.name, row.newest) for row in db.execute(ordered)]
    by_pair = _load_versions(db, pairs)
    latest: dict[str, list[ModelVersion]] = {}
    for pair in pairs:
        latest.setdefault(pair[0], []).append(by_pair[pair])
    return latest


def _get_version(db: Connection, name: str, version: int) -> ModelVersion:
    by_pair = _load_versions(db, [(name, version)])
    if not by_pair:
        raise _no_version(name, version)
    return by_pair[name, version]


def _load_versions(
    db: Connection, pairs: Sequence[tuple[str, int]]
) -> dict[tuple[str, int], ModelVersion]:
    if not pairs:
        return {}
    tags: dict[tuple[str, int], dict[str, str]] = {}
    for row in db.execute(select(model_version_tags).where(_among(model_version_tags, pairs))):
        tags.setdefault((row.name, row.version), {})[row.key] = row.value
    aliases: dict[tuple[str, int], list[str]] = {}
    query = select(model_aliases).where(_among(model_aliases, pairs))
    for row in db.execute(query.order_by(model_aliases.c.alias)):
        aliases.setdefault((row.name, row.version), []).append(row.alias)
    versions: dict[tuple[str, int], ModelVersion] = {}
    rows = db.execute(select(model_versions).where(_among(model_versions, pairs))).mappings()
    for row in rows:
        pair = (row["name"], row["version"])
        versions[pair] = _version(row, tags.get(pair, {}), aliases.get(pair, []))
    return versions


def _among(table: Table, pairs: Sequence[tuple[str, int]]) -> ColumnElement[bool]:
    return tuple_(table.c.name, table.c.version).in_(pairs)


def _version(row: Mapping[Any, Any], tags: dict[str, str], aliases: Sequence[str]) -> ModelVersion:
    columns = {name: row[name] for name in row if name not in _LINEAGE}
    lineage = {name: row[name] for name in _LINEAGE}
    return ModelVersion.model_validate(
        columns | {"lineage": lineage, "tags": tags, "aliases": aliases}
    )


def _no_model(name: str) -> NotFound:
    return NotFound(f"Registered Model with name={name} not found")


def _no_version(name: str, version: int) -> NotFound:
    return NotFound(f"Model Version (name={name}, version={version}) not found")
