"""Fingerprints of declarations: digests that change when a declaration might compute something different.

functions    fingerprints of Python functions
values       walks everything that a function reaches in local files
imports      the imports that a function makes when it runs
classes      the app's own classes
instances    what an instance holds besides its attributes
hints        the types behind names in type hints
observing    names, docstrings and annotations that code reads
code, trees  instructions as tokens; syntax trees, to compare across versions of Python
declared     fingerprints of streams, views and handlers, without Spark
recognized   the output of queries with MATCH_RECOGNIZE
parts        digests of parts of a declaration, such as a method or a default value
stored       the file `declarations.json`
verdicts     compares stored and declared fingerprints

`penstock.analyze.plan_print` adds the plan of a view: the JSON and text that Spark writes for inputs without events.
`FORM` is a version number for the set of values that a walk covers. After `FORM` has been raised, older fingerprints
are compared by their source digest, which is then also computed in the old form.
"""
