"""`pretrain evaluate --tasks=...`: what a checkpoint knows without training."""

import json
import math
from pathlib import Path

import jax

from input_pipeline.sources.parser import named_sources
from pretrain.commands.arguments import Evaluate
from pretrain.distributed.init import print_on_host0
from pretrain.errors import UserError
from pretrain.metrics.tables import one_line, show
from pretrain.run import Run
from pretrain.scoring.contamination import open_stores
from pretrain.scoring.runner import Result, Runner, centered_mean, write_rows
from pretrain.scoring.zero_shot import task_named
from pretrain.workdir import Workdir


def ask_tasks(config, arguments: Evaluate) -> None:
    """Asks the tasks, prints their metrics and keeps them in the work folder, in scores/STEP.json."""
    data = named_sources(arguments.data, "--data")
    tasks = [task_named(name, data) for name in arguments.tasks.split(",")]
    names = {task.name for task in tasks}
    for name in data:
        if name.partition("/")[0] not in names:
            raise UserError(f"--data={name}: names none of --tasks. Write TASK:SOURCE, or TASK/shots:SOURCE.")
    if not all(number.isdecimal() for number in arguments.shots.split(",")):
        raise UserError(f"--shots={arguments.shots}: not numbers. Write them as 0,1,5.")
    shots = [int(number) for number in arguments.shots.split(",")]
    run = Run(arguments.workdir, arguments.step, None, arguments.average, print_on_host0)
    # Batches hold so many tokens; --batch_size counts rows of the whole context.
    tokens = arguments.batch_size * run.model.context
    scorer = run.scorer(begins=arguments.start_token, within_word=arguments.within_word, tokens=tokens)
    fingerprint, folder = run.tokenizer.fingerprint, arguments.contamination
    stores = open_stores(folder, fingerprint) if folder else ()
    runner = Runner.build(scorer, run.model, run.variables["params"], run.spec.layout, run.prompts, stores)
    results = []
    for task in tasks:
        for number in shots:
            results.append(runner.run(task, number, arguments.limit, print_on_host0))
            if results[-1].cut:
                print_on_host0(
                    f"warning: {results[-1].cut:,} requests of {task.name} are longer than the context of "
                    f"{run.model.context} tokens and lose their beginning"
                )
    if jax.process_index() == 0:
        report(results, run.step, arguments)


def report(results: list[Result], step: int, arguments: Evaluate) -> None:
    """Prints results as a table or JSON object, and writes them."""
    rows = [one.to_json() for one in results]
    mean = centered_mean(results)
    found = {"step": step, "tasks": rows} | ({} if math.isnan(mean) else {"centered_mean": mean})
    path = Workdir(arguments.workdir).scores(step)
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(found, indent=1, allow_nan=True) + "\n", encoding="utf-8")
    if arguments.predictions:
        write_rows(Path(arguments.predictions), results)
    if arguments.format == "json":
        print(one_line(found))
        return
    table = [
        [one.task.name, one.shots, len(one.outcomes), name, measure.value, measure.stderr]
        for one in results
        for name, measure in one.measures.items()
    ]
    columns = ("task", "shots", "items", "metric", "value", "stderr")
    show(f"checkpoint {step}", columns, table)
    if arguments.contamination:
        clean = [
            [one.task.name, one.shots, one.clean[0], name, measure.value, measure.stderr]
            for one in results
            for name, measure in one.clean[1].items()
        ]
        show("items that share no 13 tokens with the training text", columns, clean)
    if not math.isnan(mean) and len(results) > 1:
        print(f"mean of (acc - chance) / (1 - chance): {mean:.4f}")
