"""Analyze: the app's views as Spark streaming queries. The only tier that imports pyspark."""
