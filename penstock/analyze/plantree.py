"""Spark's analysed plan as a tree, without the parts that change in every build."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from pyspark import cloudpickle
from pyspark.sql import DataFrame, SparkSession

from penstock.analyze.plan_values import VALUE_FIELDS, field_values, relation_rows
from penstock.analyze.pruning import Needed
from penstock.analyze.trees import items_of, walk
from penstock.app.fingerprints.digests import digest
from penstock.app.fingerprints.functions import Fingerprint, fingerprint_of

Node = dict[str, Any]
MARK = "penstock input "
"""Prefix of an alias that marks an input. The nodes below the alias are not part of the query."""
FIELDS_MAX = "1000000"
_ATTRIBUTE = "org.apache.spark.sql.catalyst.expressions.AttributeReference"
_ALIAS = "org.apache.spark.sql.catalyst.expressions.Alias"
_VARIABLE = "org.apache.spark.sql.catalyst.expressions.NamedLambdaVariable"
_CTE = {"CTERelationDef": ("id",), "CTERelationRef": ("cteId",)}
"""Nodes that Spark numbers consecutively from the start of its process, and the field that contains the number."""
_PYTHON = frozenset({"PythonUDF", "PythonUDAF", "PythonUDTF", "PythonFuncExpression"})
_LEAVES = frozenset({"CTERelationRef", "OneRowRelation", "Range", "LocalRelation"})
"""Leaf nodes that contain all their data."""
_TRANSPARENT = frozenset({"SubqueryAlias", "View"})
_LEFT_OUT = frozenset({"qualifier", "metadata", "nonInheritableMetadataKeys", "explicitMetadata", "jvmId", "nodeId"})
_NUMBERED = re.compile(r"\w*#(\d+)")
_UUID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")
_OBJECT = re.compile(r"@[0-9a-f]{4,}\b")


Origins = Mapping[str, Mapping[str, str]]
"""The original names of each stream's fields, by their current names. If a stream or field is missing, its current name
is the original."""


class PlanTree:
    """One analysed plan. `needed` contains the columns that are used from each input, where that is certain; `origins`
    contains the original names of stream fields."""

    def __init__(self, spark: SparkSession, frame: DataFrame, needed: Needed, origins: Origins) -> None:
        self._spark, self._needed, self._origins = spark, needed, origins
        self._java = frame._jdf.queryExecution().analyzed()
        self._text = str(self._java.toJSON())
        self._ids: dict[int, str] = {}
        self._unused: set[int] = set()
        self._names: dict[tuple[str, int], str] = {}
        self._udfs: set[str] = set()
        self._value_fields: dict[str, frozenset[str]] = {}
        self._ctes: dict[int, int] = {}
        self._instances = self._id_count = 0
        self.used: dict[str, dict[str, str]] = {}

    def digests(self) -> tuple[str, str]:
        """Return the digest of the plan without its Python functions, and the same digest in form 1 of plans."""
        nodes = json.loads(self._text)
        self._find_inputs(nodes)
        tree = json.dumps(self._tree(nodes), sort_keys=True)
        texts = [*self._texts()]
        now, first = ([text for text in form if text is not None] for form in zip(*texts, strict=True))
        return digest(tree, *now), digest(tree, *first)

    def reads_other_data(self) -> bool:
        """Return whether the plan reads data that is neither an input nor part of the plan, such as a file or the rows
        of a list."""
        leaves = (node for node in self._nodes(self._java) if node.children().isEmpty())
        return any(str(node.nodeName()) not in _LEAVES for node in leaves)

    def functions(self) -> list[Fingerprint]:
        """Return the fingerprints of the Python functions in the plan, in the order of its nodes."""
        return [_function_print(self._spark, expression) for expression in self._python_expressions()]

    def python_values(self) -> list[Any]:
        """Return the Python functions in the plan, as Spark passes them to its workers. A function that cannot be read
        is left out."""
        values = (_unpickled_function(self._spark, expression) for expression in self._python_expressions())
        return [value for value in values if not isinstance(value, Exception)]

    def nondeterministic(self) -> list[str]:
        """Return the names of the UDFs that are marked as not deterministic. Table functions are left out, because all
        of them have that mark."""
        return [
            str(expression.name())
            for expression in self._python_expressions()
            if _expression_class(expression).rpartition(".")[2] != "PythonUDTF" and not expression.udfDeterministic()
        ]

    def _python_expressions(self) -> list[Any]:
        if not any(f'.{name}"' in self._text for name in _PYTHON):
            return []
        return [expression for expression in self._expressions() if _is_python_expression(expression)]

    def _find_inputs(self, nodes: Any) -> None:
        """Record which input each column number belongs to, anywhere in the plan."""
        for trees in _plan_trees(nodes):
            index = 0
            while index < len(trees):
                end = _plan_tree_end(trees, index)
                name = _plan_input_name(trees[index])
                if name is not None:
                    self._note_input(name, trees[index + 1 : end])
                    index = end
                else:
                    for value in trees[index].values():
                        self._find_inputs(value)
                    index += 1

    def _note_input(self, name: str, nodes: Sequence[Node]) -> None:
        self._instances += 1
        origins, needed = self._origins.get(name, {}), self._needed.get(name)
        for node in _all_nodes(nodes):
            if node.get("class") not in (_ATTRIBUTE, _ALIAS):
                continue
            number, column = node["exprId"]["id"], node["name"]
            first = origins.get(column, column)
            self._ids.setdefault(number, f"{name}/{self._instances}.{first}")
            self._names[column, number] = self._ids[number]
            if needed is not None and column not in needed:
                self._unused.add(number)
            elif node["class"] == _ATTRIBUTE and not column.startswith("_"):
                self.used.setdefault(name, {})[first] = json.dumps(node["dataType"]).strip('"')

    def _tree(self, nodes: Sequence[Node]) -> list[Any]:
        """Return the plan's nodes in preorder, like Spark, without nodes that only rename, and with inputs as
        leaves."""
        tree: list[Any] = []
        index = 0
        while index < len(nodes):
            node, name = nodes[index], _plan_input_name(nodes[index])
            if name is not None:
                tree.append({"input": name})
                index = _plan_tree_end(nodes, index)
                continue
            if _node_class(node) not in _TRANSPARENT:
                tree.append(self._node(node))
            index += 1
        return tree

    def _node(self, node: Node) -> Node:
        named = node["class"] in (_ATTRIBUTE, _ALIAS, _VARIABLE) or _is_python_class(node["class"])
        if _is_python_class(node["class"]):
            self._udfs.add(str(node["name"]))
        if node["class"] in (_ATTRIBUTE, _ALIAS):
            self._names.setdefault((node["name"], node["exprId"]["id"]), self._id(node["exprId"]["id"]))
        if values := VALUE_FIELDS & node.keys():
            self._value_fields[node["class"]] = values
        left_out = _LEFT_OUT | ({"name"} if named else set())
        fields = {name: self._value(value) for name, value in node.items() if name not in left_out}
        for name in _CTE.get(_node_class(node), ()):
            fields[name] = self._ctes.setdefault(node[name], len(self._ctes))
        return fields

    def _value(self, value: Any) -> Any:
        if isinstance(value, dict):
            if "product-class" in value and value["product-class"].endswith(".ExprId"):
                return self._id(value["id"])
            return {name: self._value(part) for name, part in value.items() if name not in _LEFT_OUT}
        if _is_plan_tree(value):
            return self._tree(value)
        if isinstance(value, list):
            return [self._value(part) for part in value if not self._is_unused(part)]
        return value

    def _is_unused(self, tree: Any) -> bool:
        """Return whether the plan tree is an input column that is passed on but not used."""
        if not (_is_plan_tree(tree) and len(tree) == 1 and tree[0]["class"] == _ATTRIBUTE):
            return False
        return tree[0]["exprId"]["id"] in self._unused

    def _id(self, number: int) -> str:
        if number not in self._ids:
            self._ids[number] = f"#{self._id_count}"
            self._id_count += 1
        return self._ids[number]

    def _texts(self) -> Iterator[tuple[str | None, str | None]]:
        """Yield the name of each node of the plan, the text of each expression, and the values that are missing in its
        JSON. Each is a pair, of the text now and in form 1 of plans."""
        with _AllFields(self._spark):
            for node in self._nodes(self._java):
                kind = str(node.nodeName())
                yield kind, kind
                if kind == "LocalRelation":
                    yield relation_rows(node), str(node.data().mkString("\n"))
                if kind == "EventTimeWatermark":
                    yield self._plain(str(node.simpleString(25)))
                for expression in items_of(node.expressions()):
                    if _expression_class(expression) == _ATTRIBUTE and expression.exprId().id() in self._unused:
                        continue
                    yield self._plain(str(expression.toString()))
                    yield from ((values, None) for values in self._values(expression))

    def _values(self, expression: Any) -> Iterator[str]:
        """Yield the values in an expression that are missing in its JSON."""
        for part in walk(expression) if self._value_fields else ():
            if fields := self._value_fields.get(_expression_class(part)):
                yield field_values(part, fields)

    def _plain(self, text: str) -> tuple[str, str]:
        """Replace or remove the names and numbers that Spark generated in a string, now and in form 1 of plans. Longer
        names are replaced first, because one name can be the end of another.

        A constant can look like a number, an id or an address, and is then removed too. It is part of the JSON or
        yielded by `_values`. In form 1, a constant such as '#5' was replaced by column 5, if the plan had one."""
        for (name, number), token in sorted(self._names.items(), key=lambda entry: -len(entry[0][0])):
            marked = f"{name}#{number}"
            if marked in text:
                text = re.sub(rf"{re.escape(marked)}(?!\d)", f"<{token}>", text)
        for name in self._udfs:
            text = re.sub(rf"(?<!\w){re.escape(name)}\(", "function(", text)
        forms = _NUMBERED.sub("<#>", text), _NUMBERED.sub(lambda match: f"<{self._ids.get(int(match[1]), '#')}>", text)
        now, first = (_OBJECT.sub("", _UUID.sub("", form)) for form in forms)
        return now, first

    def _nodes(self, node: Any) -> Iterator[Any]:
        """Yield the nodes of Spark's plan in preorder, without inputs and nodes that only rename."""
        kind = str(node.nodeName())
        if kind == "SubqueryAlias" and str(node.identifier().name()).startswith(MARK):
            return
        if kind not in _TRANSPARENT:
            yield node
        for child in (*items_of(node.children()), *items_of(node.subqueries())):
            yield from self._nodes(child)

    def _expressions(self) -> Iterator[Any]:
        for node in self._nodes(self._java):
            for expression in items_of(node.expressions()):
                yield from walk(expression)


class _AllFields:
    """Context manager that makes Spark's text output include all fields instead of only the first 25."""

    KEY = "spark.sql.debug.maxToStringFields"

    def __init__(self, spark: SparkSession) -> None:
        self._spark = spark

    def __enter__(self) -> None:
        self._before = self._spark.conf.get(self.KEY)
        self._spark.conf.set(self.KEY, FIELDS_MAX)

    def __exit__(self, *_: Any) -> None:
        self._spark.conf.set(self.KEY, str(self._before))


def _function_print(spark: SparkSession, expression: Any) -> Fingerprint:
    """Return the fingerprint of the pickled function in an expression of Spark's plan."""
    value = _unpickled_function(spark, expression)
    if isinstance(value, Exception):
        return Fingerprint(digest("unreadable"), None, (f"{expression.name()} ({type(value).__name__}: {value})",))
    return fingerprint_of(value)


def _unpickled_function(spark: SparkSession, expression: Any) -> Any:
    """Return the function in an expression, without its type, or the exception if it cannot be read."""
    jvm = spark.sparkContext._jvm
    assert jvm is not None
    command = bytes(expression.func().command().toArray(jvm.scala.reflect.ClassTag.Byte()))
    try:
        pickled = cloudpickle.loads(command)
    except Exception as error:  # for example, if the function is so large that Spark stores it elsewhere
        return error
    return pickled[0] if isinstance(pickled, tuple) and pickled and callable(pickled[0]) else pickled


def _is_python_expression(expression: Any) -> bool:
    return _is_python_class(_expression_class(expression))


def _is_python_class(name: str) -> bool:
    return name.rpartition(".")[2] in _PYTHON


def _expression_class(expression: Any) -> str:
    return str(expression.getClass().getName())


def _is_plan_tree(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and isinstance(value[0], dict) and "num-children" in value[0]


def _node_class(node: Node) -> str:
    return str(node["class"]).rpartition(".")[2]


def _plan_input_name(node: Node) -> str | None:
    if _node_class(node) != "SubqueryAlias":
        return None
    name = str(node["identifier"]["name"])
    return name.removeprefix(MARK) if name.startswith(MARK) else None


def _plan_tree_end(nodes: Sequence[Node], index: int) -> int:
    """Return the index after the plan tree that begins at `index`, in preorder."""
    open_nodes = 1
    while open_nodes:
        open_nodes += nodes[index]["num-children"] - 1
        index += 1
    return index


def _plan_trees(value: Any) -> Iterator[Sequence[Node]]:
    """Yield the outermost plan trees within a value."""
    if _is_plan_tree(value):
        yield value
    elif isinstance(value, list):
        for part in value:
            yield from _plan_trees(part)
    elif isinstance(value, dict):
        for part in value.values():
            yield from _plan_trees(part)


def _all_nodes(nodes: Any) -> Iterator[Node]:
    """Yield all nodes of the plan trees, including nodes in expressions and nested plans."""
    if isinstance(nodes, list):
        for part in nodes:
            yield from _all_nodes(part)
    elif isinstance(nodes, dict):
        if "class" in nodes:
            yield nodes
        for part in nodes.values():
            yield from _all_nodes(part)
