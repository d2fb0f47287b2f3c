"""An analysed plan of Spark's, without what changes from build to build."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from pyspark import cloudpickle
from pyspark.sql import DataFrame, SparkSession

from penstock.analyze.pruning import Needed
from penstock.fingerprints.digests import digest
from penstock.fingerprints.functions import Fingerprint, fingerprint, fingerprint_of

Node = dict[str, Any]
MARK = "penstock input "
"""The beginning of the name that an input is marked with: what is below it is no part of the query."""
FIELDS_MAX = "1000000"
_ATTRIBUTE = "org.apache.spark.sql.catalyst.expressions.AttributeReference"
_ALIAS = "org.apache.spark.sql.catalyst.expressions.Alias"
_VARIABLE = "org.apache.spark.sql.catalyst.expressions.NamedLambdaVariable"
_CTE = {"CTERelationDef": ("id",), "CTERelationRef": ("cteId",)}
"""Nodes that Spark numbers from the start of its process on, and where the number is."""
_PYTHON = frozenset({"PythonUDF", "PythonUDAF", "PythonUDTF", "PythonFuncExpression"})
_LEAVES = frozenset({"CTERelationRef", "OneRowRelation", "Range", "LocalRelation"})
"""Leaves of a plan that hold all that they stand for."""
_TRANSPARENT = frozenset({"SubqueryAlias", "View"})
_LEFT_OUT = frozenset({"qualifier", "metadata", "nonInheritableMetadataKeys", "explicitMetadata", "jvmId", "nodeId"})
_UUID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")
_OBJECT = re.compile(r"@[0-9a-f]{4,}\b")


Origins = Mapping[str, Mapping[str, str]]
"""By streams, the first names of the fields of their classes. One that is not there has its own."""


class PlanTree:
    """One analysed plan. `needed` has, for each input of which that is certain, the columns that are used; `origins`
    the first names of the fields of streams."""

    def __init__(self, spark: SparkSession, frame: DataFrame, needed: Needed, origins: Origins) -> None:
        self._spark, self._needed, self._origins = spark, needed, origins
        self._java = frame._jdf.queryExecution().analyzed()
        self._text = str(self._java.toJSON())
        self._ids: dict[int, str] = {}
        self._unused: set[int] = set()
        self._names: dict[tuple[str, int], str] = {}
        self._udfs: set[str] = set()
        self._ctes: dict[int, int] = {}
        self._instances = self._made = 0
        self.used: dict[str, dict[str, str]] = {}

    def digest(self) -> str:
        """Of the plan without its Python functions."""
        nodes = json.loads(self._text)
        self._find_inputs(nodes)
        tree = self._tree(nodes)
        return digest(json.dumps(tree, sort_keys=True), *self._texts())

    def reads_other_data(self) -> bool:
        """Whether it reads something that is neither an input nor in the plan, such as a file, or rows of a list."""
        leaves = (node for node in self._nodes(self._java) if node.children().isEmpty())
        return any(str(node.nodeName()) not in _LEAVES for node in leaves)

    def functions(self) -> list[Fingerprint]:
        """The fingerprints of the Python functions in the plan, in the order of its nodes."""
        if not any(f'.{name}"' in self._text for name in _PYTHON):
            return []
        return [_function(self._spark, each) for each in self._expressions() if _is_python(each)]

    def _find_inputs(self, nodes: Any) -> None:
        """Note what each number stands for that belongs to an input, in whatever part of the plan it stands."""
        for trees in _sequences(nodes):
            index = 0
            while index < len(trees):
                end = _end(trees, index)
                name = _input_name(trees[index])
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
        for each in _all_nodes(nodes):
            if each.get("class") not in (_ATTRIBUTE, _ALIAS):
                continue
            number, column = each["exprId"]["id"], each["name"]
            first = origins.get(column, column)
            self._ids.setdefault(number, f"{name}/{self._instances}.{first}")
            self._names[column, number] = self._ids[number]
            if needed is not None and column not in needed:
                self._unused.add(number)
            elif each["class"] == _ATTRIBUTE and not column.startswith("_"):
                self.used.setdefault(name, {})[first] = json.dumps(each["dataType"]).strip('"')

    def _tree(self, nodes: Sequence[Node]) -> list[Any]:
        """Nodes in preorder, as Spark lists them, without those that only give names, and with inputs as leaves."""
        found: list[Any] = []
        index = 0
        while index < len(nodes):
            node, name = nodes[index], _input_name(nodes[index])
            if name is not None:
                found.append({"input": name})
                index = _end(nodes, index)
                continue
            if _simple(node) not in _TRANSPARENT:
                found.append(self._node(node))
            index += 1
        return found

    def _node(self, node: Node) -> Node:
        named = node["class"] in (_ATTRIBUTE, _ALIAS, _VARIABLE) or _is_python_class(node["class"])
        if _is_python_class(node["class"]):
            self._udfs.add(str(node["name"]))
        if node["class"] in (_ATTRIBUTE, _ALIAS):
            self._names.setdefault((node["name"], node["exprId"]["id"]), self._id(node["exprId"]["id"]))
        left_out = _LEFT_OUT | ({"name"} if named else set())
        made = {name: self._value(value) for name, value in node.items() if name not in left_out}
        for name in _CTE.get(_simple(node), ()):
            made[name] = self._ctes.setdefault(node[name], len(self._ctes))
        return made

    def _value(self, value: Any) -> Any:
        if isinstance(value, dict):
            if "product-class" in value and value["product-class"].endswith(".ExprId"):
                return self._id(value["id"])
            return {name: self._value(each) for name, each in value.items() if name not in _LEFT_OUT}
        if _is_tree(value):
            return self._tree(value)
        if isinstance(value, list):
            return [self._value(each) for each in value if not self._is_unused(each)]
        return value

    def _is_unused(self, tree: Any) -> bool:
        """Whether it is a column of an input that is only passed on."""
        if not (_is_tree(tree) and len(tree) == 1 and tree[0]["class"] == _ATTRIBUTE):
            return False
        return tree[0]["exprId"]["id"] in self._unused

    def _id(self, number: int) -> str:
        if number not in self._ids:
            self._ids[number] = f"#{self._made}"
            self._made += 1
        return self._ids[number]

    def _texts(self) -> Iterator[str]:
        """The text of each expression, and of nodes that have more to say than JSON tells."""
        with _AllFields(self._spark):
            for node in self._nodes(self._java):
                kind = str(node.nodeName())
                yield kind
                if kind == "LocalRelation":
                    yield str(node.data().mkString("\n"))
                if kind == "EventTimeWatermark":
                    yield self._plain(str(node.simpleString(25)))
                for each in _each(node.expressions()):
                    if _class(each) == _ATTRIBUTE and each.exprId().id() in self._unused:
                        continue
                    yield self._plain(str(each.toString()))

    def _plain(self, text: str) -> str:
        """A text of Spark's without names and numbers that it has given. Longer names first: one may end as another."""
        for (name, number), token in sorted(self._names.items(), key=lambda each: -len(each[0][0])):
            marked = f"{name}#{number}"
            if marked in text:
                text = re.sub(rf"{re.escape(marked)}(?!\d)", f"<{token}>", text)
        for name in self._udfs:
            text = re.sub(rf"(?<!\w){re.escape(name)}\(", "function(", text)
        text = re.sub(r"(\w*)#(\d+)", lambda found: f"<{self._ids.get(int(found[2]), '#')}>", text)
        return _OBJECT.sub("", _UUID.sub("", text))

    def _nodes(self, node: Any) -> Iterator[Any]:
        """The nodes of the plan in preorder, without inputs and those that only give names."""
        kind = str(node.nodeName())
        if kind == "SubqueryAlias" and str(node.identifier().name()).startswith(MARK):
            return
        if kind not in _TRANSPARENT:
            yield node
        for child in (*_each(node.children()), *_each(node.subqueries())):
            yield from self._nodes(child)

    def _expressions(self) -> Iterator[Any]:
        for node in self._nodes(self._java):
            for each in _each(node.expressions()):
                yield from _walk(each)


class _AllFields:
    """While it lasts, Spark writes all fields of what it turns into text, and not the first 25."""

    KEY = "spark.sql.debug.maxToStringFields"

    def __init__(self, spark: SparkSession) -> None:
        self._spark = spark

    def __enter__(self) -> None:
        self._before = self._spark.conf.get(self.KEY)
        self._spark.conf.set(self.KEY, FIELDS_MAX)

    def __exit__(self, *_: Any) -> None:
        self._spark.conf.set(self.KEY, str(self._before))


def _function(spark: SparkSession, expression: Any) -> Fingerprint:
    """Of the function in an expression, which Spark holds pickled."""
    jvm = spark.sparkContext._jvm
    assert jvm is not None
    command = bytes(expression.func().command().toArray(jvm.scala.reflect.ClassTag.Byte()))
    try:
        pickled = cloudpickle.loads(command)
    except Exception as error:  # as of a function so large that Spark holds it elsewhere
        return Fingerprint(digest("unreadable"), None, (f"{expression.name()} ({type(error).__name__}: {error})",))
    if isinstance(pickled, tuple) and pickled and callable(pickled[0]):
        return fingerprint(pickled[0])
    return fingerprint_of(pickled)


def _is_python(expression: Any) -> bool:
    return _is_python_class(_class(expression))


def _is_python_class(name: str) -> bool:
    return name.rpartition(".")[2] in _PYTHON


def _class(expression: Any) -> str:
    return str(expression.getClass().getName())


def _walk(expression: Any) -> Iterator[Any]:
    yield expression
    for child in _each(expression.children()):
        yield from _walk(child)


def _each(sequence: Any) -> Iterator[Any]:
    for index in range(sequence.size()):
        yield sequence.apply(index)


def _is_tree(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and isinstance(value[0], dict) and "num-children" in value[0]


def _simple(node: Node) -> str:
    return str(node["class"]).rpartition(".")[2]


def _input_name(node: Node) -> str | None:
    if _simple(node) != "SubqueryAlias":
        return None
    name = str(node["identifier"]["name"])
    return name.removeprefix(MARK) if name.startswith(MARK) else None


def _end(nodes: Sequence[Node], index: int) -> int:
    """Where the tree ends that begins at an index, in preorder."""
    open_nodes = 1
    while open_nodes:
        open_nodes += nodes[index]["num-children"] - 1
        index += 1
    return index


def _sequences(value: Any) -> Iterator[Sequence[Node]]:
    """The trees within a value, the outermost ones."""
    if _is_tree(value):
        yield value
    elif isinstance(value, list):
        for each in value:
            yield from _sequences(each)
    elif isinstance(value, dict):
        for each in value.values():
            yield from _sequences(each)


def _all_nodes(nodes: Any) -> Iterator[Node]:
    """All nodes of trees, those of expressions and of nested plans too."""
    if isinstance(nodes, list):
        for each in nodes:
            yield from _all_nodes(each)
    elif isinstance(nodes, dict):
        if "class" in nodes:
            yield nodes
        for each in nodes.values():
            yield from _all_nodes(each)
