"""The way in for coding agents: the MCP server, on public objects only."""
