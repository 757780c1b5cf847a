"""The commands and their options; each command's work is in a module of its own, imported when it runs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from vkml.cli.guard import guarded

app = typer.Typer(
    name="vkml",
    help="Runs and trains models on any GPU through Vulkan, and on the CPU.",
    epilog="vkml help COMMAND shows a command's options, vkml completion SHELL completes them in bash, zsh "
    "or fish. --debug (anywhere) or VKML_DEBUG=1 shows the traceback of an error.",
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)

ModelFile = Annotated[
    Path,
    typer.Argument(metavar="MODEL", help="An .onnx file, or - for the standard input.", show_default=False),
]
DeviceName = Annotated[
    str, typer.Option("--device", "-d", metavar="NAME", help="auto, cpu, vulkan:0, ... (see: vkml devices).")
]
Precision = Annotated[str, typer.Option(metavar="POLICY", help="highest, high or medium.")]
Dimensions = Annotated[
    list[str] | None,
    typer.Option(
        "--dim", metavar="NAME=N", help="Size of a symbolic dimension; 1 where not given.", show_default=False
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")]
Seed = Annotated[int, typer.Option(min=0, help="Seed of random inputs.")]
Strict = Annotated[
    bool, typer.Option("--strict", help="Refuse to run any part of the model on another device.")
]


def _show_version(wanted: bool) -> None:
    if wanted:
        from vkml import __version__

        typer.echo(f"vkml {__version__}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    """Runs and trains models on any GPU through Vulkan, and on the CPU."""


@app.command()
@guarded
def devices(
    as_json: AsJson = False,
    everything: Annotated[bool, typer.Option("--all", "-a", help="Include software Vulkan devices.")] = False,
) -> int:
    """List the devices that models can run on."""
    from vkml.cli.devices import show_devices

    return show_devices(everything=everything, as_json=as_json)


@app.command()
@guarded
def run(
    model: ModelFile,
    files: Annotated[
        list[str] | None,
        typer.Argument(metavar="FILE", help="Values of inputs, as for --input.", show_default=False),
    ] = None,
    inputs: Annotated[
        list[str] | None,
        typer.Option(
            "--input",
            "-i",
            metavar="[NAME=]FILE",
            help="An input's value: .npy, .npz, .pb, an image, or - for the standard input; "
            "several images of one input make a batch.",
            show_default=False,
        ),
    ] = None,
    random: Annotated[
        bool, typer.Option("--random", help="Fill the inputs not given with random values.")
    ] = False,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="DIR", help="Write each output as .npy there.")
    ] = None,
    top: Annotated[
        int | None, typer.Option(min=1, metavar="K", help="Print the K best classes with probabilities.")
    ] = None,
    labels: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Names of the classes, one a line, for --top.")
    ] = None,
    softmax: Annotated[
        bool | None,
        typer.Option("--softmax/--no-softmax", help="Softmax before --top; by default where scores need it."),
    ] = None,
    device: DeviceName = "auto",
    precision: Precision = "high",
    repeat: Annotated[int, typer.Option(min=1, metavar="N", help="Run N times and time each.")] = 1,
    dimensions: Dimensions = None,
    seed: Seed = 0,
    fit: Annotated[
        str,
        typer.Option(
            metavar="HOW",
            help="Of images of other proportions: stretch, crop (the middle is kept) or pad (with black).",
        ),
    ] = "stretch",
    edge: Annotated[
        int | None,
        typer.Option(
            min=1, metavar="N", help="Shorter edge of images before --fit crop; 256 is usual for 224."
        ),
    ] = None,
    bgr: Annotated[bool, typer.Option("--bgr", help="Images' channels are blue, green, red.")] = False,
    scale: Annotated[
        float, typer.Option(metavar="N", help="Images' values go from 0 to this: 1 or 255.")
    ] = 1.0,
    mean: Annotated[
        str | None,
        typer.Option(metavar="M[,M...]", help="Taken off images' values (0..--scale), per channel."),
    ] = None,
    std: Annotated[
        str | None, typer.Option(metavar="S[,S...]", help="Divides images' values after that, per channel.")
    ] = None,
    strict: Strict = False,
    as_json: AsJson = False,
) -> int:
    """Run a model on given or random inputs."""
    from vkml.cli.run import RunRequest, run_model

    return run_model(
        RunRequest(
            model=model,
            inputs=(*(inputs or ()), *(files or ())),
            fill_randomly=random,
            output=output,
            top=top,
            labels=labels,
            softmax=softmax,
            device=device,
            precision=precision,
            repeat=repeat,
            dimensions=tuple(dimensions or ()),
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
@guarded
def inspect(
    model: ModelFile,
    plan: Annotated[bool, typer.Option("--plan", help="Also plan it: devices, kernels, memory.")] = False,
    graph: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Draw the graph, as .svg or .png.", show_default=False),
    ] = None,
    time: Annotated[
        bool, typer.Option("--time", help="With --plan: run it on random inputs, and time each step.")
    ] = False,
    device: DeviceName = "auto",
    precision: Precision = "high",
    dimensions: Dimensions = None,
    as_json: AsJson = False,
) -> int:
    """Show what a model holds, and how it would run."""
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
            dimensions=tuple(dimensions or ()),
            as_json=as_json,
        )


@app.command()
@guarded
def profile(
    model: ModelFile,
    files: Annotated[
        list[str] | None,
        typer.Argument(metavar="FILE", help="Values of inputs; others are random.", show_default=False),
    ] = None,
    device: DeviceName = "auto",
    precision: Precision = "high",
    dimensions: Dimensions = None,
    seed: Seed = 0,
    repeat: Annotated[int, typer.Option(min=1, metavar="N", help="Runs that are measured.")] = 10,
    top: Annotated[int, typer.Option(min=1, metavar="K", help="Steps that the table shows.")] = 20,
    trace: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="Where a .json for Perfetto goes, or MODEL-trace.json.", show_default=False
        ),
    ] = None,
    picture: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Where a drawing of a run goes, .svg or .png, or MODEL-timeline.svg.",
            show_default=False,
        ),
    ] = None,
    has_files: Annotated[
        bool, typer.Option("--files/--no-files", help="Write files without being told where.")
    ] = True,
    ceiling: Annotated[
        bool, typer.Option("--ceiling/--no-ceiling", help="Measure what the device can do at best.")
    ] = True,
    as_json: AsJson = False,
) -> int:
    """Show where a model's time goes."""
    from vkml.cli.profile import ProfileRequest, profile_model

    return profile_model(
        ProfileRequest(
            model=model,
            inputs=tuple(files or ()),
            device=device,
            precision=precision,
            dimensions=tuple(dimensions or ()),
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
@guarded
def bench(
    models: Annotated[
        list[Path], typer.Argument(metavar="MODEL...", help=".onnx files.", show_default=False)
    ],
    device: Annotated[
        list[str] | None,
        typer.Option("--device", "-d", metavar="NAME", help="A device; may be repeated. Default: auto."),
    ] = None,
    precision: Precision = "high",
    repeat: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Runs to time, instead of --seconds.")
    ] = None,
    seconds: Annotated[float, typer.Option(min=0.0, metavar="S", help="Time to spend on each model.")] = 2.0,
    dimensions: Dimensions = None,
    seed: Seed = 0,
    as_json: AsJson = False,
) -> int:
    """Time models on random inputs."""
    from vkml.cli.bench import bench_models

    return bench_models(
        models,
        devices=tuple(device or ("auto",)),
        precision=precision,
        repeat=repeat,
        seconds=seconds,
        dimensions=tuple(dimensions or ()),
        seed=seed,
        as_json=as_json,
    )


@app.command()
@guarded
def train(
    data: Annotated[
        Path,
        typer.Argument(
            metavar="DATA", help="A folder of class folders of images, or a .csv table.", show_default=False
        ),
    ],
    output: Annotated[
        Path, typer.Option("--output", "-o", metavar="MODEL", help="Where the .onnx file goes.")
    ] = Path("model.onnx"),
    target: Annotated[
        str | None, typer.Option(metavar="COLUMN", help="Of a table: what is to be predicted.")
    ] = None,
    task: Annotated[
        str | None,
        typer.Option(metavar="KIND", help="classification or regression; found out where not given."),
    ] = None,
    epochs: Annotated[int, typer.Option(min=1, metavar="N", help="Rounds over the data.")] = 30,
    batch: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Samples a step; 64, or what fits few samples.")
    ] = None,
    size: Annotated[
        int | None, typer.Option(min=8, metavar="N", help="Images' edge in pixels; theirs, at most 64.")
    ] = None,
    lr: Annotated[float, typer.Option(min=0.0, metavar="RATE", help="Learning rate of AdamW.")] = 2e-3,
    seed: Annotated[int, typer.Option(min=0, help="Of all that is random.")] = 0,
    device: DeviceName = "auto",
    validation: Annotated[
        float,
        typer.Option("--val", metavar="SHARE", help="Share held out to judge by."),
    ] = 0.2,
    patience: Annotated[
        int, typer.Option(min=0, metavar="N", help="Epochs without improvement that are borne.")
    ] = 10,
    log_dir: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="For checkpoints, log.csv and event files."),
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on from the last checkpoint there.")] = False,
    skip_bad: Annotated[bool, typer.Option("--skip-bad", help="Leave out unreadable images.")] = False,
    precision: Annotated[
        str | None, typer.Option(metavar="POLICY", help="highest, high, medium, bfloat16 or float16.")
    ] = None,
) -> int:
    """Train a model on images or a table."""
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
        )
    )


@app.command()
@guarded
def doctor(
    device: Annotated[
        list[str] | None,
        typer.Option("--device", "-d", metavar="NAME", help="A device; may be repeated. Default: all."),
    ] = None,
    match: Annotated[
        str, typer.Option("--match", "-k", metavar="WORD", help="Only cases with it in the name.")
    ] = "",
    everything: Annotated[bool, typer.Option("--all", "-a", help="Include software Vulkan devices.")] = False,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="List the cases that pass, too.")] = False,
    as_json: AsJson = False,
) -> int:
    """Check the installation and every kernel."""
    from vkml.cli.doctor import show_diagnosis

    return show_diagnosis(
        tuple(device or ()), match=match, everything=everything, verbose=verbose, as_json=as_json
    )


@app.command()
@guarded
def completion(
    shell: Annotated[str, typer.Argument(metavar="SHELL", help="bash, zsh or fish.", show_default=False)],
) -> int:
    """Print a script that completes commands and options."""
    from vkml.cli.completion import completion_script

    print(completion_script(shell), end="")
    return 0
