"""A whole source: what its names stand for, its functions as the module has them, its entry point."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from vkml.dataclasses import dataclass
from vkml.kernels.slang import opcodes as op
from vkml.kernels.slang import syntax, types
from vkml.kernels.slang.body import Body, Place, Value
from vkml.kernels.slang.emitter import Emitter, Operand
from vkml.kernels.slang.errors import Unsupported
from vkml.kernels.slang.intrinsics import LIGHT, OUTPUTS
from vkml.kernels.slang.module import Module
from vkml.kernels.slang.phases import place_in_grid
from vkml.kernels.slang.types import Record, Scalar, Type

_SEMANTICS = {
    "SV_GroupID": (26, types.vector(types.UINT, 3)),
    "SV_GroupThreadID": (27, types.vector(types.UINT, 3)),
    "SV_DispatchThreadID": (28, types.vector(types.UINT, 3)),
    "SV_GroupIndex": (29, types.UINT),
}
_LEAVES = syntax.Name, syntax.Number
_USES = {"MatrixA": 0, "MatrixB": 1, "MatrixAccumulator": 2}


@dataclass(frozen=True)
class Instance:
    """A function of the module."""

    number: int
    result: Type
    parameters: tuple[Type, ...]


class Compilation:
    """Compiles one program.

    Args:
        program: it.
        phases: programs that it calls: ``phase0``, ``phase1`` and so on are their ``main``.
        whole: the program whose phase this one is. It has its push constants, by names of its own.
    """

    def __init__(
        self,
        program: syntax.Program,
        phases: Sequence[syntax.Program] = (),
        whole: Compilation | None = None,
    ) -> None:
        self.program = program
        self.module: Module = (
            Module(shares_memory=bool(phases), is_coherent=program.is_coherent)
            if whole is None
            else whole.module
        )
        self._records: dict[str, Record] = {}
        self._named: dict[str, Operand] = {}
        self._instances: dict[tuple[object, ...], Instance] = {}
        self.numbers: dict[syntax.Number, Value] = {}
        """What numbers of the source are, once they are wanted."""
        self._light: dict[str, bool] = {}
        self._assigned: dict[int, frozenset[str]] = {}
        self._shared: Counter[Type] = Counter()
        """Shared variables so far."""
        self._function: Instance | None = None
        """What a phase has become."""
        self._push: Place | None = None
        self._is_writing: Place | None = None
        """Of a phase that has twins: whether an invocation writes to memory."""
        outside = Emitter(self, Body(self.module))
        for number, declared in program.specialization:
            assert declared.type is not None
            type_ = self.type(declared.type, outside)
            default = 1 if declared.value is None else outside.fixed(declared.value)
            if not isinstance(type_, Scalar) or type_.kind not in "iu":
                raise Unsupported("a specialization constant that is no integer")
            made = self.module.specialization(type_, number, default)
            self._named[declared.name] = Value(type_, made)
        if program.push is not None:
            name, push = program.push
            record = self.type(push, outside)
            assert isinstance(record, Record)
            if record.fields:
                block = self.module.push_block(record) if whole is None else whole.push_block
                self._push = self._named[name] = Place(op.PUSH_CONSTANT, block, record)
        self._phases = {
            f"phase{number}": Compilation(phase, whole=self) for number, phase in enumerate(phases)
        }

    def finish(self) -> bytes:
        """The module, its entry point the function ``main``."""
        body = Body(self.module)
        emitter = self._begun(body)
        sizes = self.workgroup
        for parameter in self._main.parameters:
            built_in, type_ = _SEMANTICS[_known_semantic(parameter)]
            variable = self.module.built_in(built_in, type_)
            emitter.bind(parameter.name, body.load(Place(op.INPUT, variable, type_)))
        number = self.module.new()
        emitter.run(self._main.body)
        body.leave()
        type_number = self.module.function_type(types.VOID, ())
        self.module.function(body.words(types.VOID, number, type_number, ()))
        return self.module.finish(number, sizes)

    @property
    def push_block(self) -> int:
        """The number of the variable of the push constants."""
        if self._push is None:
            raise Unsupported("push constants of a phase, where the whole has none")
        return self._push.root

    @property
    def workgroup(self) -> tuple[int, int, int]:
        """The size of a workgroup."""
        emitter = Emitter(self, Body(self.module))
        x, y, z = [emitter.fixed(size) for size in self._main.attributes["numthreads"]]
        return x, y, z

    @property
    def shared_types(self) -> list[Type]:
        """The types of the variables that a workgroup shares."""
        emitter = Emitter(self, Body(self.module))
        found = []
        for shared in self.program.shared.values():
            assert shared.type is not None
            found.append(emitter.sized(self.type(shared.type, emitter), shared.sizes))
        return found

    @property
    def _main(self) -> syntax.Function:
        functions = self.program.functions.get("main")
        if not functions or "numthreads" not in functions[0].attributes:
            raise Unsupported("a source without main")
        return functions[0]

    def _begun(self, body: Body) -> Emitter:
        emitter = Emitter(self, body)
        emitter.assigned = self.assigned(self._main)
        return emitter

    def phase(self, name: str, has_twins: bool) -> Instance | None:
        """A phase as a function of a workgroup's place in its grid, and of a thread's number in that.

        Args:
            name: by which it is called.
            has_twins: whether it is told, too, whether the thread writes. One that does not goes the way of
                another, which has its number, and is at each barrier with all of them.
        """
        found = self._phases.get(name)
        return None if found is None else found._as_function(has_twins)

    def _as_function(self, has_twins: bool) -> Instance:
        if self._function is not None:
            return self._function
        module = self.module
        if has_twins:
            self._is_writing = Place(op.PRIVATE, module.variable(op.PRIVATE, types.BOOL), types.BOOL)
        body = Body(module, self._is_writing)
        emitter = self._begun(body)
        kinds = (_SEMANTICS["SV_GroupID"][1], types.UINT, *([types.BOOL] if has_twins else []))
        group, thread, *told = given = [Value(type_, module.new()) for type_ in kinds]
        for writes in told:
            assert self._is_writing is not None
            body.store(self._is_writing, writes)
        for parameter in self._main.parameters:
            place = place_in_grid(body, _known_semantic(parameter), group, thread, self.workgroup)
            emitter.bind(parameter.name, place)
        emitter.run(self._main.body)
        body.leave()
        self._function = made = Instance(module.new(), types.VOID, kinds)
        parameters = [(module.type(value.type), value.number) for value in given]
        type_number = module.function_type(types.VOID, [number for number, _ in parameters])
        module.function(body.words(types.VOID, made.number, type_number, parameters))
        return made

    # --- names

    def type(self, name: syntax.TypeName, emitter: Emitter) -> Type:
        """The type that is written so."""
        found = self._type(name, emitter)
        for _ in range(name.pointers):
            found = types.pointer(found)
        return found

    def _type(self, name: syntax.TypeName, emitter: Emitter) -> Type:
        generic = emitter.generics.get(name.name)
        if generic is not None:
            return generic
        built_in = types.builtin(name.name)
        if built_in is not None:
            return built_in
        alias = self.program.aliases.get(name.name)
        if alias is not None:
            return self.type(alias, emitter)
        if name.name in self.program.structs:
            return self._record(name.name, emitter)
        if name.name == "vector":
            element = self._argument(name.arguments[0], emitter)
            return types.vector(element, emitter.fixed(name.arguments[1]))
        if name.name == "CoopMat":
            kind, scope, rows, columns, use = name.arguments
            if not isinstance(scope, syntax.Member) or scope.name != "Subgroup":
                raise Unsupported("a matrix that is not a subgroup's")
            if not isinstance(use, syntax.Member) or use.name not in _USES:
                raise Unsupported("a matrix of another use")
            sizes = emitter.fixed(rows), emitter.fixed(columns)
            return types.fragment(self._argument(kind, emitter), *sizes, _USES[use.name])
        raise Unsupported(f"the type {name.name}")

    def _argument(self, argument: syntax.Expression, emitter: Emitter) -> Scalar:
        found = self.type(argument.type, emitter) if isinstance(argument, syntax.TypeOperand) else None
        if not isinstance(found, Scalar):
            raise Unsupported("elements that are no scalars")
        return found

    def _record(self, name: str, emitter: Emitter) -> Record:
        found = self._records.get(name)
        if found is None:
            fields: dict[str, Type] = {}
            for member in self.program.structs[name].fields:
                assert member.type is not None
                fields[member.name] = emitter.sized(self.type(member.type, emitter), member.sizes)
            found = self._records[name] = Record(name, fields)
        return found

    def named(self, name: str, emitter: Emitter) -> Operand:
        """What a name that no function declares stands for."""
        found = self._named.get(name)
        if found is not None:
            return found
        constant = self.program.constants.get(name)
        if constant is not None:
            return self._constant(constant, emitter)
        shared = self.program.shared.get(name)
        if shared is None:
            raise Unsupported(f"the name {name}")
        assert shared.type is not None
        type_ = emitter.sized(self.type(shared.type, emitter), shared.sizes)
        made = Place(op.WORKGROUP, self.module.shared_variable(type_, self._shared[type_]), type_)
        self._shared[type_] += 1
        self._named[name] = made
        return made

    def _constant(self, declared: syntax.Declare, emitter: Emitter) -> Value:
        assert declared.type is not None and declared.value is not None
        # It sees none of the names where it is used.
        scopes, emitter.scopes = emitter.scopes, [{}]
        type_ = emitter.sized(self.type(declared.type, emitter), declared.sizes)
        value = emitter.converted(declared.value, type_)
        emitter.scopes = scopes
        if value.constant is not None or value.parts:
            self._named[declared.name] = value
        return value

    # --- functions

    def assigned(self, function: syntax.Function) -> frozenset[str]:
        """Names of variables that a function changes, also through parameters of others."""
        found = self._assigned.get(id(function))
        if found is None:
            through = {name for callee, at, name in function.handed if self._writes(callee, at)}
            found = self._assigned[id(function)] = function.assigned | through
        return found

    def _writes(self, callee: str, position: int) -> bool:
        """Whether any function of a name may write to the argument at a place (-1: its own struct)."""
        if position in OUTPUTS.get(callee, ()):
            return True
        if position < 0:
            methods = [m for struct in self.program.structs.values() for m in struct.methods]
            return any(method.name == callee and "mutating" in method.attributes for method in methods)
        known = [
            *self.program.functions.get(callee, ()),
            *(m for struct in self.program.structs.values() for m in struct.methods if m.name == callee),
        ]
        return any(
            position < len(function.parameters) and function.parameters[position].mode != "in"
            for function in known
        )

    def instance(self, function: syntax.Function, generics: Mapping[str, Type], emitter: Emitter) -> Instance:
        """A function as the module has it, added when it is first asked for."""
        key = id(function), *generics.values()
        found = self._instances.get(key)
        if found is not None:
            return found
        body = Body(self.module, self._is_writing)
        inside = Emitter(self, body)
        inside.generics, inside.assigned = generics, self.assigned(function)
        inside.result = inside.type(function.result)
        parameters: list[tuple[int, int]] = []
        kinds: list[Type] = []
        for parameter in function.parameters:
            type_ = inside.sized(inside.type(parameter.type), parameter.sizes)
            number = self.module.new()
            kinds.append(type_)
            if parameter.mode == "in":
                parameters.append((self.module.type(type_), number))
                inside.bind(parameter.name, Value(type_, number))
            else:
                parameters.append((self.module.pointer(op.FUNCTION_STORAGE, type_), number))
                inside.scopes[-1][parameter.name] = Place(op.FUNCTION_STORAGE, number, type_)
        made = self._instances[key] = Instance(self.module.new(), inside.result, tuple(kinds))
        inside.run(function.body)
        if inside.result is types.VOID:
            body.leave()
        else:
            body.unreachable()
        type_number = self.module.function_type(inside.result, [number for number, _ in parameters])
        self.module.function(body.words(inside.result, made.number, type_number, parameters))
        return made

    # --- questions about expressions

    def probe(
        self, emitter: Emitter, expression: syntax.Expression, known: dict[str, Operand]
    ) -> int | float | bool | None:
        """The value of an expression of constants, in a function of which `known` parameters are; or None."""
        if not _is_of_names(expression):
            return None
        scratch = Emitter(self, Body(self.module))
        scratch.body.block = 0
        scratch.scopes = [known]
        scratch.generics = emitter.generics
        try:
            return scratch.value(expression).constant
        except Unsupported:
            return None

    def is_light(self, expression: syntax.Expression, emitter: Emitter | None = None) -> bool:
        """Whether to compute an expression costs less than to branch round it, and harms nobody.

        Args:
            expression: that is in question.
            emitter: knows what the expression's names stand for; None: that of a function's body, of which
                there is no telling.
        """
        if isinstance(expression, _LEAVES):
            return True
        if isinstance(expression, syntax.Member):
            return self.is_light(expression.base, emitter)
        if isinstance(expression, syntax.Index):
            return emitter is not None and emitter.is_register(expression)
        if isinstance(expression, syntax.Unary):
            return self.is_light(expression.operand, emitter)
        if isinstance(expression, syntax.Binary):
            is_division = expression.operation in ("/", "%") and not isinstance(
                expression.right, syntax.Number
            )
            is_left_light = not is_division and self.is_light(expression.left, emitter)
            return is_left_light and self.is_light(expression.right, emitter)
        if isinstance(expression, syntax.Conditional):
            parts = (expression.condition, expression.yes, expression.no)
            return all(self.is_light(part, emitter) for part in parts)
        if isinstance(expression, syntax.Construct):
            return all(self.is_light(part, emitter) for part in expression.arguments)
        if isinstance(expression, syntax.Call):
            is_light = expression.base is None and self._is_light_function(expression.name)
            return is_light and all(self.is_light(part, emitter) for part in expression.arguments)
        return False

    def _is_light_function(self, name: str) -> bool:
        found = self._light.get(name)
        if found is None:
            functions = self.program.functions.get(name)
            self._light[name] = False  # while it is asked of itself
            found = name in LIGHT if functions is None else all(map(self._is_light_body, functions))
            self._light[name] = found
        return found

    def _is_light_body(self, function: syntax.Function) -> bool:
        statements: Sequence[syntax.Statement] = function.body.statements
        only = statements[0] if len(statements) == 1 else None
        return isinstance(only, syntax.Return) and only.value is not None and self.is_light(only.value)


def _known_semantic(parameter: syntax.Parameter) -> str:
    if parameter.semantic not in _SEMANTICS:
        raise Unsupported(f"the semantic {parameter.semantic}")
    return parameter.semantic


def _is_of_names(expression: syntax.Expression) -> bool:
    """Whether an expression calls nothing and reads no memory."""
    if isinstance(expression, syntax.Binary):
        return _is_of_names(expression.left) and _is_of_names(expression.right)
    if isinstance(expression, syntax.Unary):
        return _is_of_names(expression.operand)
    return isinstance(expression, _LEAVES)
