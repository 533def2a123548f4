"""Item vectors and what belongs to items: the table, co-clicks, attributes, trends, the session's
own items."""
