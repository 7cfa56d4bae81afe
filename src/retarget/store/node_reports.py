"""What each node of an attempt with several nodes has reported, in SQL."""

from sqlalchemy import Engine, insert, select, update
from sqlalchemy.exc import IntegrityError

from retarget.core.errors import Conflict
from retarget.core.jobs import NodeReport
from retarget.store.engine import reading, writing
from retarget.store.schema import node_reports


class NodeReports:
    def __init__(self, engine: Engine) -> None:
        self.engine = engine

    def of(self, key: str) -> list[NodeReport]:
        """Return the nodes that have reported, in order."""
        columns = [node_reports.c[name] for name in NodeReport.model_fields]
        query = select(*columns).where(node_reports.c.key == key).order_by(node_reports.c.node)
        with reading(self.engine) as db:
            return [NodeReport.model_validate(dict(row)) for row in db.execute(query).mappings()]

    def replace(self, key: str, before: NodeReport | None, after: NodeReport) -> None:
        """Store a node's report, or raise Conflict if the node has reported more meanwhile."""
        row = after.model_dump()
        try:
            with writing(self.engine) as db:
                if before is None:
                    db.execute(insert(node_reports).values(key=key, **row))
                    return
                is_node = (node_reports.c.key == key) & (node_reports.c.node == after.node)
                unchanged = node_reports.c.events_acked == before.events_acked
                if not db.execute(
                    update(node_reports).where(is_node, unchanged).values(row)
                ).rowcount:
                    raise Conflict("the node has reported more meanwhile")
        except IntegrityError as error:
            raise Conflict("the node has reported meanwhile") from error
