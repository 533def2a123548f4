"""Bodies on Litestar's road, read as on the quick one: Litestar alone takes 0 for false and "5" for 5."""

from typing import Any

import msgspec
from litestar import Request


class StrictRequest(Request[Any, Any, Any]):
    async def json(self) -> Any:
        """The body as what the route asks for."""
        wanted = self.route_handler.parsed_data_field
        return msgspec.json.decode(await self.body(), type=wanted.annotation if wanted is not None else Any)
