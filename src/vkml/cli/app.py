"""The commands and their options; each command's work is in a module of its own, imported when it runs."""

from __future__ import annotations

from pathlib import Path

import click

from vkml import __version__
from vkml.cli.completion import SHELLS, propose_devices
from vkml.cli.guard import guarded
from vkml.precisions import PRECISIONS

PATH = click.Path(path_type=Path)
FOLDER = click.Path(file_okay=False, path_type=Path)
VALUE = click.Path()
"""Of an input: a file behind its name and =, as a rule."""


@click.group(
    name="vkml",
    help="Runs and trains models on any GPU through Vulkan, and on the CPU.",
    epilog="vkml help COMMAND shows a command's options, vkml completion SHELL completes them in bash, zsh "
    "or fish. --debug (anywhere) or VKML_DEBUG=1 shows the traceback of an error.",
    context_settings={"help_option_names": ["-h", "--help"], "show_default": True},
)
@click.version_option(__version__, prog_name="vkml", message="%(prog)s %(version)s", help="Show the version.")
def app() -> None:
    """Runs and trains models on any GPU through Vulkan, and on the CPU."""


as_json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON instead of tables.")
model_argument = click.argument("model", type=PATH, metavar="MODEL")
device_option = click.option(
    "--device",
    "-d",
    default="auto",
    metavar="NAME",
    help="auto, cpu, vulkan:0, ... (see: vkml devices).",
    shell_complete=propose_devices,
)
precision_option = click.option(
    "--precision",
    type=click.Choice(PRECISIONS),
    default="high",
    metavar="POLICY",
    help="highest, high or medium.",
)
dimensions_option = click.option(
    "--dim",
    "dimensions",
    multiple=True,
    metavar="NAME=N",
    help="Size of a symbolic dimension; 1 where not given.",
)
seed_option = click.option("--seed", type=click.IntRange(min=0), default=0, help="Seed of random inputs.")
strict_option = click.option(
    "--strict",
    is_flag=True,
    help="Refuse to run any part of the model on another device.",
)


@app.command()
@as_json_option
@click.option(
    "--all",
    "-a",
    "everything",
    is_flag=True,
    help="Include software Vulkan devices.",
)
@guarded
def devices(as_json: bool, everything: bool) -> int:
    """List the devices that models can run on."""
    from vkml.cli.devices import show_devices

    return show_devices(everything=everything, as_json=as_json)


@app.command()
@model_argument
@click.argument("files", type=VALUE, nargs=-1, metavar="[FILE]...")
@click.option(
    "--input",
    "-i",
    "inputs",
    type=VALUE,
    multiple=True,
    metavar="[NAME=]FILE",
    help="An input's value: .npy, .npz, .pb, an image, or - for the standard input; "
    "several images of one input make a batch.",
)
@click.option(
    "--random",
    is_flag=True,
    help="Fill the inputs not given with random values.",
)
@click.option("--output", "-o", type=FOLDER, metavar="DIR", help="Write each output as .npy there.")
@click.option(
    "--top", type=click.IntRange(min=1), metavar="K", help="Print the K best classes with probabilities."
)
@click.option("--labels", type=PATH, metavar="FILE", help="Names of the classes, one a line, for --top.")
@click.option(
    "--softmax/--no-softmax",
    "softmax",
    default=None,
    show_default=False,
    help="Softmax before --top; by default where scores need it.",
)
@device_option
@precision_option
@click.option(
    "--repeat", type=click.IntRange(min=1), default=1, metavar="N", help="Run N times and time each."
)
@dimensions_option
@seed_option
@click.option(
    "--fit",
    type=click.Choice(("stretch", "crop", "pad")),
    default="stretch",
    metavar="HOW",
    help="Of images of other proportions: stretch, crop (the middle is kept) or pad (with black).",
)
@click.option(
    "--edge",
    type=click.IntRange(min=1),
    metavar="N",
    help="Shorter edge of images before --fit crop; 256 is usual for 224.",
)
@click.option("--bgr", is_flag=True, help="Images' channels are blue, green, red.")
@click.option(
    "--scale", type=float, default=1.0, metavar="N", help="Images' values go from 0 to this: 1 or 255."
)
@click.option("--mean", metavar="M[,M...]", help="Taken off images' values (0..--scale), per channel.")
@click.option("--std", metavar="S[,S...]", help="Divides images' values after that, per channel.")
@strict_option
@as_json_option
@guarded
def run(
    model: Path,
    files: tuple[str, ...],
    inputs: tuple[str, ...],
    random: bool,
    output: Path | None,
    top: int | None,
    labels: Path | None,
    softmax: bool | None,
    device: str,
    precision: str,
    repeat: int,
    dimensions: tuple[str, ...],
    seed: int,
    fit: str,
    edge: int | None,
    bgr: bool,
    scale: float,
    mean: str | None,
    std: str | None,
    strict: bool,
    as_json: bool,
) -> int:
    """Run a model on given or random inputs.

    MODEL is an .onnx file, or - for the standard input; FILEs are values of inputs, as for --input.
    """
    from vkml.cli.run import RunRequest, run_model

    return run_model(
        RunRequest(
            model=model,
            inputs=(*inputs, *files),
            fill_randomly=random,
            output=output,
            top=top,
            labels=labels,
            softmax=softmax,
            device=device,
            precision=precision,
            repeat=repeat,
            dimensions=dimensions,
            seed=seed,
            mean=mean,
            std=std,
            white=scale,
            fit=fit,
            edge=edge,
            is_bgr=bgr,
            strict=strict,
            as_json=as_json,
        )
    )


@app.command()
@model_argument
@click.option("--plan", is_flag=True, help="Also plan it: devices, kernels, memory.")
@click.option("--graph", type=PATH, metavar="FILE", help="Draw the graph, as .svg or .png.")
@click.option(
    "--time",
    is_flag=True,
    help="With --plan: run it on random inputs, and time each step.",
)
@device_option
@precision_option
@dimensions_option
@as_json_option
@guarded
def inspect(
    model: Path,
    plan: bool,
    graph: Path | None,
    time: bool,
    device: str,
    precision: str,
    dimensions: tuple[str, ...],
    as_json: bool,
) -> int:
    """Show what a model holds, and how it would run.

    MODEL is an .onnx file, or - for the standard input.
    """
    from vkml.cli.inspect import inspect_model
    from vkml.cli.sources import model_file

    with model_file(model) as file:
        return inspect_model(
            file,
            plan=plan,
            is_timed=time,
            drawing=graph,
            device=device,
            precision=precision,
            dimensions=dimensions,
            as_json=as_json,
        )


@app.command()
@model_argument
@click.argument("files", type=VALUE, nargs=-1, metavar="[FILE]...")
@device_option
@precision_option
@dimensions_option
@seed_option
@click.option("--repeat", type=click.IntRange(min=1), default=10, metavar="N", help="Runs that are measured.")
@click.option(
    "--top", type=click.IntRange(min=1), default=20, metavar="K", help="Steps that the table shows."
)
@click.option(
    "--trace", type=PATH, metavar="FILE", help="Where a .json for Perfetto goes, or MODEL-trace.json."
)
@click.option(
    "--picture",
    type=PATH,
    metavar="FILE",
    help="Where a drawing of a run goes, .svg or .png, or MODEL-timeline.svg.",
)
@click.option("--files/--no-files", "has_files", default=True, help="Write files without being told where.")
@click.option(
    "--ceiling/--no-ceiling", "ceiling", default=True, help="Measure what the device can do at best."
)
@as_json_option
@guarded
def profile(
    model: Path,
    files: tuple[str, ...],
    device: str,
    precision: str,
    dimensions: tuple[str, ...],
    seed: int,
    repeat: int,
    top: int,
    trace: Path | None,
    picture: Path | None,
    has_files: bool,
    ceiling: bool,
    as_json: bool,
) -> int:
    """Show where a model's time goes.

    MODEL is an .onnx file, or - for the standard input; FILEs are values of inputs, others are random.
    """
    from vkml.cli.profile import ProfileRequest, profile_model

    return profile_model(
        ProfileRequest(
            model=model,
            inputs=files,
            device=device,
            precision=precision,
            dimensions=dimensions,
            seed=seed,
            repeat=repeat,
            top=top,
            trace=trace,
            picture=picture,
            writes_files=has_files,
            has_ceiling=ceiling,
            as_json=as_json,
        )
    )


@app.command()
@click.argument("models", type=PATH, nargs=-1, required=True, metavar="MODEL...")
@click.option(
    "--device",
    "-d",
    multiple=True,
    metavar="NAME",
    help="A device; may be repeated. Default: auto.",
    shell_complete=propose_devices,
)
@precision_option
@click.option("--repeat", type=click.IntRange(min=1), metavar="N", help="Runs to time, instead of --seconds.")
@click.option(
    "--seconds", type=click.FloatRange(min=0.0), default=2.0, metavar="S", help="Time to spend on each model."
)
@dimensions_option
@seed_option
@as_json_option
@guarded
def bench(
    models: tuple[Path, ...],
    device: tuple[str, ...],
    precision: str,
    repeat: int | None,
    seconds: float,
    dimensions: tuple[str, ...],
    seed: int,
    as_json: bool,
) -> int:
    """Time models on random inputs.

    MODELs are .onnx files.
    """
    from vkml.cli.bench import bench_models

    return bench_models(
        models,
        devices=device or ("auto",),
        precision=precision,
        repeat=repeat,
        seconds=seconds,
        dimensions=dimensions,
        seed=seed,
        as_json=as_json,
    )


@app.command()
@click.argument("models", type=PATH, nargs=-1, required=True, metavar="MODEL...")
@device_option
@precision_option
@dimensions_option
@seed_option
@as_json_option
@guarded
def warmup(
    models: tuple[Path, ...],
    device: str,
    precision: str,
    dimensions: tuple[str, ...],
    seed: int,
    as_json: bool,
) -> int:
    """Compile models' kernels, for later sessions.

    MODELs are .onnx files. Each is planned, compiled and run once on random inputs; where it leaves sizes
    open, once more with others. What is compiled stays in the cache folder (see: vkml doctor).
    """
    from vkml.cli.warmup import warm_models

    return warm_models(
        models, device=device, precision=precision, dimensions=dimensions, seed=seed, as_json=as_json
    )


@app.command()
@click.argument("models", type=PATH, nargs=-1, required=True, metavar="MODEL...")
@click.option(
    "--output", "-o", type=PATH, metavar="FILE", help="Where what is found goes, for other machines."
)
@click.option(
    "--effort",
    type=click.Choice(("quick", "full")),
    default="full",
    metavar="HOW",
    help="quick (2 s a model at most) or full (60 s).",
)
@device_option
@precision_option
@dimensions_option
@seed_option
@as_json_option
@guarded
def tune(
    models: tuple[Path, ...],
    output: Path | None,
    effort: str,
    device: str,
    precision: str,
    dimensions: tuple[str, ...],
    seed: int,
    as_json: bool,
) -> int:
    """Measure which kernels are the fastest on a GPU.

    MODELs are .onnx files. What is found stays in the cache folder, for sessions whose options say
    tune="quick" or "full"; sessions that are given FILE as tuning_file go by that.
    """
    from vkml.cli.tune import tune_models

    return tune_models(
        models,
        output=output,
        effort=effort,
        device=device,
        precision=precision,
        dimensions=dimensions,
        seed=seed,
        as_json=as_json,
    )


@app.command()
@click.argument("data", type=PATH, metavar="DATA")
@click.option(
    "--output",
    "-o",
    type=PATH,
    default=Path("model.onnx"),
    metavar="MODEL",
    help="Where the .onnx file goes.",
)
@click.option("--target", metavar="COLUMN", help="Of a table: what is to be predicted.")
@click.option(
    "--task",
    type=click.Choice(("classification", "regression")),
    metavar="KIND",
    help="classification or regression; found out where not given.",
)
@click.option("--epochs", type=click.IntRange(min=1), default=30, metavar="N", help="Rounds over the data.")
@click.option(
    "--batch", type=click.IntRange(min=1), metavar="N", help="Samples a step; 64, or what fits few samples."
)
@click.option(
    "--size", type=click.IntRange(min=8), metavar="N", help="Images' edge in pixels; theirs, at most 64."
)
@click.option(
    "--lr", type=click.FloatRange(min=0.0), default=0.002, metavar="RATE", help="Learning rate of AdamW."
)
@click.option("--seed", type=click.IntRange(min=0), default=0, help="Of all that is random.")
@device_option
@click.option(
    "--val", "validation", type=float, default=0.2, metavar="SHARE", help="Share held out to judge by."
)
@click.option(
    "--patience",
    type=click.IntRange(min=0),
    default=10,
    metavar="N",
    help="Epochs without improvement that are borne.",
)
@click.option("--log-dir", type=FOLDER, metavar="DIR", help="For checkpoints, log.csv and event files.")
@click.option("--resume", is_flag=True, help="Go on from the last checkpoint there.")
@click.option("--skip-bad", is_flag=True, help="Leave out unreadable images.")
@click.option(
    "--augment",
    type=click.Choice(("flip", "flip-vertical", "rotate", "shift")),
    multiple=True,
    metavar="HOW",
    help="Change images at random: flip, flip-vertical, rotate, shift; may be repeated.",
)
@click.option(
    "--precision",
    type=click.Choice((*PRECISIONS, "bfloat16", "float16")),
    metavar="POLICY",
    help="highest, high, medium, bfloat16 or float16.",
)
@guarded
def train(
    data: Path,
    output: Path,
    target: str | None,
    task: str | None,
    epochs: int,
    batch: int | None,
    size: int | None,
    lr: float,
    seed: int,
    device: str,
    validation: float,
    patience: int,
    log_dir: Path | None,
    resume: bool,
    skip_bad: bool,
    augment: tuple[str, ...],
    precision: str | None,
) -> int:
    """Train a model on images or a table.

    DATA is a folder of class folders of images, or a .csv table.
    """
    from vkml.cli.train import TrainRequest, train_model

    return train_model(
        TrainRequest(
            data=data,
            output=output,
            target=target,
            task=task,
            epochs=epochs,
            batch=batch,
            size=size,
            lr=lr,
            seed=seed,
            device=device,
            validation=validation,
            patience=patience,
            log_dir=log_dir,
            resume=resume,
            skip_bad=skip_bad,
            precision=precision,
            augment=augment,
        )
    )


@app.command()
@click.option(
    "--device",
    "-d",
    multiple=True,
    metavar="NAME",
    help="A device; may be repeated. Default: all.",
    shell_complete=propose_devices,
)
@click.option("--match", "-k", default="", metavar="WORD", help="Only cases with it in the name.")
@click.option(
    "--all",
    "-a",
    "everything",
    is_flag=True,
    help="Include software Vulkan devices.",
)
@click.option("--verbose", "-v", is_flag=True, help="List the cases that pass, too.")
@as_json_option
@guarded
def doctor(device: tuple[str, ...], match: str, everything: bool, verbose: bool, as_json: bool) -> int:
    """Check the installation and every kernel."""
    from vkml.cli.doctor import show_diagnosis

    return show_diagnosis(device, match=match, everything=everything, verbose=verbose, as_json=as_json)


@app.command()
@click.argument("shell", type=click.Choice(SHELLS), metavar="SHELL")
@guarded
def completion(shell: str) -> int:
    """Print a script that completes commands and options.

    SHELL is bash, zsh or fish.
    """
    from vkml.cli.completion import completion_script

    print(completion_script(shell), end="")
    return 0
