"""A crawl that follows all links, and can be killed: ``python -m tests.peers.crawl URL JOBDIR [SETTING=VALUE …]``."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator, Iterator
from typing import Any

from scrapy import Request, Spider
from scrapy.crawler import CrawlerProcess
from scrapy.http import Response

CONCURRENT = 4


class Follower(Spider):
    """A spider that follows every link. Its first page is filtered like any other, so that it is fetched once."""

    name = "follower"
    url = ""

    async def start(self) -> AsyncIterator[Any]:
        """Yield the request of the first page."""
        yield Request(self.url)

    def parse(self, response: Response, **_: Any) -> Iterator[Any]:
        """Yield a request for each link; some of them have another priority."""
        for number, link in enumerate(response.css("a::attr(href)").getall()):
            yield response.follow(link, priority=number % 3)


def main() -> None:
    """Crawl until the end, or until killed."""
    url, jobdir, *more = sys.argv[1:]
    settings = {
        "ADDONS": {"persistentqueue.scrapy.Addon": 500},
        "JOBDIR": jobdir,
        "CONCURRENT_REQUESTS": CONCURRENT,
        "CONCURRENT_REQUESTS_PER_DOMAIN": CONCURRENT,
        "DOWNLOAD_DELAY": 0,
        "TELNETCONSOLE_ENABLED": False,
        "ROBOTSTXT_OBEY": False,
        "LOG_LEVEL": "WARNING",
    }
    process = CrawlerProcess(settings | dict(setting.split("=", 1) for setting in more))
    process.crawl(Follower, url=url)
    process.start()


if __name__ == "__main__":
    main()
