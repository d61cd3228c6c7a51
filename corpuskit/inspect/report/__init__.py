"""The report of a run: one HTML file that needs nothing beside itself.

facts.py          gathers everything that is shown, as JSON values: what phases and stages cost, and
funnel.py         documents, bytes and tokens before each stage, drops and changes by rule
distributions.py  what was measured, domains, lengths
ledger.py         rows of the ledger: samples, and spans by rule
clusters.py       clusters of duplicates
samples.py        texts within a budget; excerpts.py marks spans and shortens
page.py           puts the file together: policy, facts as JSON; where it goes, and which trainings
belong to it
web/              the frame; *.css is the look; *.js draw everything else from the facts, as
text only
"""
