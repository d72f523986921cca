"""What commands show with: tables, curves, reports, JSON."""
