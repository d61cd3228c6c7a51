"""The report of a run: one HTML file that needs nothing beside itself.

assemble.py  puts the file together: policy, facts as JSON, tables for readers without scripts
place.py     where it goes, and which trainings belong to it
page.html    the frame; *.css is the look; *.js draw everything else from the facts, as text only
"""

from __future__ import annotations

from corpuskit.inspect.page.assemble import render

__all__ = ["render"]
