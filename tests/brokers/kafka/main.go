// A Kafka broker for tests, and a second client for it.
//
//	kafka broker -port 9092 -data DIR     serves until it is killed; acknowledged records survive a restart
//	kafka produce -addresses A -topic T   a record per input line: {"key", "value", "headers", "partition"}
//	kafka consume -addresses A -topic T -count N   prints N records as such lines, with offset and timestamp
//	kafka delete -addresses A -topic T -before N   deletes the first records of partition 0, up to offset N
//	kafka committed -addresses A -group G  prints the group's committed offsets: {"topic", "partition", "offset"}
package main

import (
	"bufio"
	"context"
	"crypto/tls"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"sort"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// Longer than any operation takes on a loaded machine.
const patience = 60 * time.Second

type record struct {
	Key       *string           `json:"key"`
	Value     *string           `json:"value"`
	Headers   map[string]string `json:"headers,omitempty"`
	Partition int32             `json:"partition"`
	Offset    int64             `json:"offset"`
	Timestamp int64             `json:"timestamp_ms"`
}

type position struct {
	Topic     string `json:"topic"`
	Partition int32  `json:"partition"`
	Offset    int64  `json:"offset"`
}

type options struct {
	port        int
	data        string
	topics      string
	partitions  int
	certificate string
	key         string
	user        string
	settings    string

	addresses   string
	topic       string
	group       string
	count       int
	before      int64
	compression string
}

func main() {
	if len(os.Args) < 2 {
		fail(fmt.Errorf("usage: kafka broker|produce|consume|delete|committed [options]"))
	}
	var o options
	flags := flag.NewFlagSet(os.Args[1], flag.ExitOnError)
	flags.IntVar(&o.port, "port", 0, "of the broker; 0: any")
	flags.StringVar(&o.data, "data", "", "folder in which the broker keeps everything; empty: memory")
	flags.StringVar(&o.topics, "topics", "", "comma list of topics that exist from the start")
	flags.IntVar(&o.partitions, "partitions", 1, "of these topics")
	flags.StringVar(&o.certificate, "certificate", "", "PEM file; with it the broker speaks TLS")
	flags.StringVar(&o.key, "key", "", "PEM file of the certificate's key")
	flags.StringVar(&o.user, "user", "", "mechanism:name:password of the only user")
	flags.StringVar(&o.settings, "settings", "", "comma list of name=value of the broker")
	flags.StringVar(&o.addresses, "addresses", "", "comma list of brokers")
	flags.StringVar(&o.topic, "topic", "", "topic")
	flags.StringVar(&o.group, "group", "", "consumer group")
	flags.IntVar(&o.count, "count", 0, "records to read")
	flags.Int64Var(&o.before, "before", 0, "offset up to which records are deleted")
	flags.StringVar(&o.compression, "compression", "none", "none, gzip, snappy, lz4 or zstd")
	fail(flags.Parse(os.Args[2:]))
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	switch os.Args[1] {
	case "broker":
		fail(broker(o))
	case "produce":
		fail(produce(ctx, o))
	case "consume":
		fail(consume(ctx, o))
	case "delete":
		fail(deleteRecords(ctx, o))
	case "committed":
		fail(committed(ctx, o))
	default:
		fail(fmt.Errorf("%q is no command", os.Args[1]))
	}
}

func broker(o options) error {
	opts := []kfake.Opt{
		kfake.NumBrokers(1),
		kfake.Ports(o.port),
		kfake.DefaultNumPartitions(o.partitions),
		kfake.GroupMinSessionTimeout(time.Second),
	}
	if o.data != "" {
		opts = append(opts, kfake.DataDir(o.data), kfake.SyncWrites())
	}
	if o.topics != "" {
		opts = append(opts, kfake.SeedTopics(int32(o.partitions), strings.Split(o.topics, ",")...))
	}
	if o.certificate != "" {
		pair, err := tls.LoadX509KeyPair(o.certificate, o.key)
		if err != nil {
			return err
		}
		opts = append(opts, kfake.TLS(&tls.Config{Certificates: []tls.Certificate{pair}}))
	}
	if parts := strings.SplitN(o.user, ":", 3); len(parts) == 3 {
		opts = append(opts, kfake.EnableSASL(), kfake.Superuser(parts[0], parts[1], parts[2]))
	}
	if o.settings != "" {
		settings := map[string]string{}
		for _, setting := range strings.Split(o.settings, ",") {
			name, value, _ := strings.Cut(setting, "=")
			settings[name] = value
		}
		opts = append(opts, kfake.BrokerConfigs(settings))
	}
	cluster, err := kfake.NewCluster(opts...)
	if err != nil {
		return err
	}
	fmt.Println("listening", strings.Join(cluster.ListenAddrs(), ","))
	select {}
}

func produce(ctx context.Context, o options) error {
	codecs := map[string]kgo.CompressionCodec{
		"none": kgo.NoCompression(), "gzip": kgo.GzipCompression(), "snappy": kgo.SnappyCompression(),
		"lz4": kgo.Lz4Compression(), "zstd": kgo.ZstdCompression(),
	}
	client, err := kgo.NewClient(
		kgo.SeedBrokers(strings.Split(o.addresses, ",")...),
		kgo.ProducerBatchCompression(codecs[o.compression]),
		kgo.RecordPartitioner(kgo.ManualPartitioner()),
	)
	if err != nil {
		return err
	}
	defer client.Close()
	var records []*kgo.Record
	lines := bufio.NewScanner(os.Stdin)
	lines.Buffer(nil, 16<<20)
	for lines.Scan() {
		var r record
		if err := json.Unmarshal(lines.Bytes(), &r); err != nil {
			return err
		}
		out := &kgo.Record{Topic: o.topic, Partition: r.Partition}
		if r.Value != nil {
			out.Value = []byte(*r.Value)
		}
		if r.Key != nil {
			out.Key = []byte(*r.Key)
		}
		for name, value := range r.Headers {
			out.Headers = append(out.Headers, kgo.RecordHeader{Key: name, Value: []byte(value)})
		}
		records = append(records, out)
	}
	return client.ProduceSync(ctx, records...).FirstErr()
}

func consume(ctx context.Context, o options) error {
	client, err := kgo.NewClient(
		kgo.SeedBrokers(strings.Split(o.addresses, ",")...),
		kgo.ConsumeTopics(o.topic),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()),
	)
	if err != nil {
		return err
	}
	defer client.Close()
	out := json.NewEncoder(os.Stdout)
	for seen := 0; seen < o.count; {
		fetches := client.PollFetches(ctx)
		if err := fetches.Err(); err != nil {
			return fmt.Errorf("%d of %d records read: %w", seen, o.count, err)
		}
		for _, r := range fetches.Records() {
			line := record{Partition: r.Partition, Offset: r.Offset, Timestamp: r.Timestamp.UnixMilli()}
			if r.Value != nil {
				value := string(r.Value)
				line.Value = &value
			}
			if r.Key != nil {
				key := string(r.Key)
				line.Key = &key
			}
			if len(r.Headers) > 0 {
				line.Headers = map[string]string{}
			}
			for _, header := range r.Headers {
				line.Headers[header.Key] = string(header.Value)
			}
			if err := out.Encode(line); err != nil {
				return err
			}
			seen++
		}
	}
	return nil
}

func deleteRecords(ctx context.Context, o options) error {
	client, err := kgo.NewClient(kgo.SeedBrokers(strings.Split(o.addresses, ",")...))
	if err != nil {
		return err
	}
	defer client.Close()
	request := kmsg.NewPtrDeleteRecordsRequest()
	topic := kmsg.NewDeleteRecordsRequestTopic()
	topic.Topic = o.topic
	partition := kmsg.NewDeleteRecordsRequestTopicPartition()
	partition.Offset = o.before
	topic.Partitions = append(topic.Partitions, partition)
	request.Topics = append(request.Topics, topic)
	response, err := request.RequestWith(ctx, client)
	if err != nil {
		return err
	}
	for _, topic := range response.Topics {
		for _, partition := range topic.Partitions {
			if err := kerr.ErrorForCode(partition.ErrorCode); err != nil {
				return err
			}
		}
	}
	return nil
}

func committed(ctx context.Context, o options) error {
	client, err := kgo.NewClient(kgo.SeedBrokers(strings.Split(o.addresses, ",")...))
	if err != nil {
		return err
	}
	defer client.Close()
	request := kmsg.NewPtrOffsetFetchRequest()
	request.Group = o.group
	group := kmsg.NewOffsetFetchRequestGroup()
	group.Group = o.group
	request.Groups = append(request.Groups, group)
	response, err := request.RequestWith(ctx, client)
	if err != nil {
		return err
	}
	var all []position
	for _, group := range response.Groups {
		for _, topic := range group.Topics {
			for _, p := range topic.Partitions {
				all = append(all, position{topic.Topic, p.Partition, p.Offset})
			}
		}
	}
	sort.Slice(all, func(i, j int) bool {
		a, b := all[i], all[j]
		return a.Topic < b.Topic || a.Topic == b.Topic && a.Partition < b.Partition
	})
	out := json.NewEncoder(os.Stdout)
	for _, p := range all {
		if err := out.Encode(p); err != nil {
			return err
		}
	}
	return nil
}

func fail(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, "kafka:", err)
		os.Exit(1)
	}
}
