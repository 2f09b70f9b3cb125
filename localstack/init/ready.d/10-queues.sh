#!/bin/sh
# Run by LocalStack once it is ready: the queues of the examples, as `brokerwq queues declare`
# would make them. Dead-letter queue first, since the redrive policy names it.
set -eu

declare_queue() {
    name=$1
    dead=$(awslocal sqs create-queue --queue-name "$name-dead" \
        --attributes MessageRetentionPeriod=1209600 --query QueueUrl --output text)
    arn=$(awslocal sqs get-queue-attributes --queue-url "$dead" \
        --attribute-names QueueArn --query Attributes.QueueArn --output text)
    policy="{\\\"deadLetterTargetArn\\\":\\\"$arn\\\",\\\"maxReceiveCount\\\":\\\"100\\\"}"
    awslocal sqs create-queue --queue-name "$name" \
        --attributes "{\"MessageRetentionPeriod\":\"1209600\",\"RedrivePolicy\":\"$policy\"}"
}

for queue in ${BROKERWQ_QUEUES:-thumbnails images}; do
    declare_queue "$queue"
done
