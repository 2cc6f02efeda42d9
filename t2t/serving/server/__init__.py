"""An HTTP server for one model: a page and a JSON API."""
