"""The server side of the dashboard: panels, the JSON under /api/, and the page itself."""
