"""A site's folder, as `rounds provision` wrote it and its staff edited it: identity, policy, data and state."""

from __future__ import annotations

import json
import logging
import tomllib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

from grandrounds.capabilities.hospital.keeper.access import FILE as REJECTED_PEERS
from grandrounds.capabilities.hospital.keeper.access import AccessControl, RejectedPeers
from grandrounds.capabilities.hospital.keeper.policy.policy_file import PolicyFile
from grandrounds.capabilities.hospital.keeper.policy.rules import TOLD, Policy
from grandrounds.capabilities.hospital.keeper.runtime.keeper import Keeper
from grandrounds.capabilities.hospital.keeper.runtime.run import SiteIdentity
from grandrounds.capabilities.hospital.keeper.store import Store
from grandrounds.capabilities.sources.cohort.definition import Cohort
from grandrounds.core.errors import BadInput, nearest
from grandrounds.core.plan import PlanValues
from grandrounds.core.plan_types import DataSettings
from grandrounds.data.agreement.check import read_rows
from grandrounds.data.agreement.schema import AgreedSchema, DataSchema
from grandrounds.data.agreement.schema_file import parse_schema
from grandrounds.data.formats import Format
from grandrounds.data.images import ImageSet
from grandrounds.data.new_patients import NewPatients
from grandrounds.data.readers import table_format
from grandrounds.data.table import Table
from grandrounds.privacy.budget import Budget
from grandrounds.privacy.secagg import Secret
from grandrounds.privacy.site_budget import LimitChange, SiteBudget
from grandrounds.protocol.identity import Identity, load_public
from grandrounds.protocol.peers import FILE as PEERS
from grandrounds.protocol.peers import Peers

_log = logging.getLogger("grandrounds.keeper")


@dataclass(frozen=True)
class SiteFolder:
    """The folder of one site."""

    path: Path

    def settings(self) -> Mapping[str, Any]:
        """Read site.toml.

        Returns:
            Its settings.

        Raises:
            BadInput: It cannot be read, or lacks a key.
        """
        file = self.path / "site.toml"
        try:
            settings = tomllib.loads(file.read_text())
        except OSError as e:
            raise BadInput(
                f"{self.path} is not a site's folder: site.toml cannot be read ({e.strerror or e})",
                code="not-a-site-folder",
            ) from None
        except (tomllib.TOMLDecodeError, UnicodeDecodeError) as e:
            raise BadInput(f"{file} is not TOML: {e}", code="not-toml") from None
        for section, key, kind in (("", "name", str), ("node", "port", int), ("limits", "seconds", int)):
            values = settings.get(section, {}) if section else settings
            if not isinstance(values, Mapping) or not isinstance(values.get(key), kind):
                raise BadInput(
                    f"{file} has no {section + '.' if section else ''}{key}: restore the file that was handed over",
                    code="missing-key",
                )
        return settings

    @property
    def name(self) -> str:
        return str(self.settings()["name"])

    @property
    def state(self) -> Path:
        """Folder of the site's state, readable by its owner only."""
        folder = self.path / "state"
        folder.mkdir(mode=0o700, exist_ok=True)
        return folder

    def identity(self) -> Identity:
        """Load the site's signing key.

        Raises:
            BadInput: The site has not made its keys yet.
        """
        if not (self.path / "keys").exists():
            raise BadInput(f"{self.path} has no keys yet: `rounds site join {self.path}` makes them", code="no-keys")
        return Identity.load(self.path / "keys" / "site.key")

    def schema(self) -> AgreedSchema | None:
        """Read the agreed schema; None if there is none."""
        file = self.path / "schema.json"
        if not file.exists():
            return None
        try:
            plain = json.loads(file.read_text())
        except (OSError, ValueError) as e:
            raise BadInput(f"{file} cannot be read: {e}", code="cannot-read") from None
        return parse_schema(plain, folder=self.path, where=str(file))

    def cohort(self) -> Cohort | None:
        """Read the agreed cohort; None if there is none."""
        schema = self.schema()
        return schema.cohort if isinstance(schema, DataSchema) and isinstance(schema.cohort, Cohort) else None

    def peers(self) -> Peers | None:
        """Read the list of the consortium's sites and their keys; None if there is none."""
        file = self.path / PEERS
        return Peers.load(file) if file.exists() else None

    def accepted_peers(self, policy: Policy | None = None) -> Mapping[str, bytes] | None:
        """Return the keys of sites accepted in secure sums; None if the policy trusts the server's list."""
        if (policy or self.policy()).secure.peers == TOLD:
            return None
        peers = self.peers()
        if peers is None:
            _log.warning("%s has no %s: secure sums are refused until `rounds site accept` has accepted one", self.path, PEERS)
            return {}
        if self.name not in peers.keys:
            _log.warning(
                "%s does not list this site: its request is not approved, or `rounds site accept` was not run; until then the "
                "server does not know its keys, and secure sums are refused",
                self.path / PEERS,
            )
        elif peers.keys[self.name] != self.identity().public:
            _log.warning("%s has another key for this site than keys/: secure sums are refused", self.path / PEERS)
        return peers.keys

    def policy(self) -> Policy:
        return Policy.load(self.path / "policy.toml")

    def budget(self, policy: Policy | None = None) -> SiteBudget:
        """Open the site budget, with the limits of the policy."""
        p = (policy or self.policy()).privacy
        return SiteBudget.open(self.state / "purse.json", epsilon=p.epsilon, delta=p.delta)

    def stored_budget(self) -> Budget | None:
        """Read the site budget with its stored limits; None before the first start."""
        path = self.state / "purse.json"
        return SiteBudget(path).budget() if path.exists() else None

    def foresee_limits(self, policy: Policy) -> LimitChange | None:
        """Compare a policy with the site budget, which stays as it is; None before the first start."""
        path, p = self.state / "purse.json", policy.privacy
        return SiteBudget(path).foresee(p.epsilon, p.delta) if path.exists() else None

    def open_plans(self) -> list[PlanValues]:
        """Read the plans of the runs that are open at this site."""
        stores = (Store(folder) for folder in sorted((self.state / "runs").glob("*")))
        return [opening.plan for store in stores if (opening := store.opening()) is not None]

    def rows(
        self, data: str, *, query: str | None = None, form: Format | None = None, pending: bool = False
    ) -> Table | ImageSet:
        """Read the site's own data without preparation.

        Args:
            data: A table, images, or clinical records where the consortium agreed on a cohort.
            query: A SELECT or a table name; of clinical records the schema of their tables.
            form: The format of a text file, in place of that of site.toml.
            pending: Of clinical records: also take visits whose outcome is not known yet.
        """
        return read_rows(
            self.schema(), data, query=query, form=form or self.form(), pending=pending, vocabulary=self.vocabulary()
        )

    def vocabulary(self) -> Path | None:
        """Return the folder or zip with CONCEPT.csv, from [records] of site.toml; None without it.

        Raises:
            BadInput: The section has an unknown key.
        """
        section = self.settings().get("records", {})
        odd = next((key for key in section if key != "vocabulary"), None)
        if odd is not None:
            raise BadInput(
                f"unknown key '{odd}' in [records] of {self.path / 'site.toml'}; it may have vocabulary", code="unknown-key"
            )
        return self.path / section["vocabulary"] if "vocabulary" in section else None

    def new_patients(self) -> NewPatients | None:
        """Return the site's new patients, from [watch] of site.toml: `table`, and `query` or `sheet`; None without it.

        Raises:
            BadInput: The section has an unknown key, or names no table.
        """
        section = self.settings().get("watch")
        if section is None:
            return None
        keys = ("table", "query", "sheet")
        odd = next((key for key in section if key not in keys), None)
        if odd is not None or not isinstance(section.get("table"), str):
            where = f"[watch] of {self.path / 'site.toml'}"
            raise BadInput(
                f"unknown key '{odd}' in {where}; {nearest(odd, keys)}" if odd else f"{where} names no table of new patients",
                code="unknown-key" if odd else "missing-key",
            )
        table = section["table"] if "://" in section["table"] else str(self.path / section["table"])

        def read() -> Table:
            form = replace(self.form(), sheet=section.get("sheet"))
            rows = self.rows(table, query=section.get("query"), form=form, pending=True)
            if not isinstance(rows, Table):
                raise BadInput(f"{table} holds images, and a watch needs a table", code="needs-table")
            return rows

        return NewPatients(read, self.path / "watch")

    def form(self) -> Format:
        """Return the format of the site's file from [table] of site.toml: its decimal mark, encoding, separator, sheet ..."""
        section = self.settings().get("table", {})
        keys = [f.name for f in fields(Format) if f.name != "detect"]
        odd = next((key for key in section if key not in keys), None)
        if odd is not None:
            raise BadInput(
                f"unknown key '{odd}' in [table] of {self.path / 'site.toml'}; {nearest(odd, keys)}",
                code="unknown-key",
            )
        return table_format(DataSettings({**asdict(Format()), **section}))

    def keeper(self, data: str, *, query: str | None = None, device: str = "auto") -> Keeper:
        """Create the keeper of this site's data. It reads policy.toml anew when the file changes."""
        file = PolicyFile(self.path / "policy.toml")
        rows, access = self.rows(data, query=query), self._access(file.policy)

        def renew(current: Policy) -> AccessControl | None:
            policy = file.read()
            if policy == current:
                return None
            return replace(access, policy=policy, budget=self.budget(policy), peers=self.accepted_peers(policy))

        return Keeper(
            SiteIdentity(self.name, self.identity(), Secret.own()),
            server=load_public(self.path / "server.pub"),
            rows=lambda: rows,
            state=self.state / "runs",
            access=access,
            device=device,
            new=self.new_patients(),
            renew=renew,
        )

    def _access(self, policy: Policy) -> AccessControl:
        """Create the access control of this site under a policy."""
        schema = self.schema()
        return AccessControl(
            policy,
            self.budget(policy),
            split=self.state / "split",
            classes=() if schema is None else schema.classes,
            cohort=schema.cohort.digest() if isinstance(schema, DataSchema) and schema.cohort is not None else "",
            peers=self.accepted_peers(policy),
            rejected_peers=RejectedPeers(self.state / REJECTED_PEERS),
        )
