"""One task of a Celery project, run by brokerwq on the queue that Celery fills.

    brokerwq run app:app

Celery goes on sending `billing.tasks.send_receipt.delay(4711, "EUR", locale="de")` and need not
know. The queue `celery-dead` must be there: see README.md.
"""

from __future__ import annotations

from pathlib import Path

from brokerwq import App, Job, RetryPolicy

app = App()


@app.worker(
    "celery",
    codec="celery",
    foreign=True,
    name="billing.tasks.send_receipt",
    on_unknown="leave",  # Celery's own workers run the other tasks
    retry=RetryPolicy(max_attempts=5),
)
def send_receipt(job: Job, *, order: int, currency: str, locale: str = "en") -> None:
    """The arguments are those of the task; a second run writes the same file again."""
    folder = Path("receipts")
    folder.mkdir(exist_ok=True)
    (folder / f"{order}.txt").write_text(f"{order} {currency} {locale}, task {job.id}\n")
