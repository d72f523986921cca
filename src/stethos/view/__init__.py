"""Plain values between the tables and the screens: each made in one place, drawn by every screen."""
